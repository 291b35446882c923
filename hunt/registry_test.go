//go:build hunt

package hunt

import "sync"

// registry collects what the holders did.
type registry struct {
	mu           sync.Mutex
	acquisitions map[string]*acquisition
	ops          map[string][]op
	// releases are the unlocks that were answered, by revision.
	releases map[int64]span
	count    int
}

// op is the result of an operation of a holder. token is that of the lock.
type op struct {
	kind  kind
	token int64
	span
}

// kind is what the holder learned from an operation.
type kind string

const (
	acquired kind = "acquired" // the lock was free, and has the token now
	observed kind = "observed" // another holder had the lock, with the token
	renewed  kind = "renewed"  // the holder renewed the lock with the token
	lost     kind = "lost"     // the lock no longer had the token
	freed    kind = "freed"    // the lock had the token and was unlocked or removed
)

func newRegistry() *registry {
	return &registry{acquisitions: map[string]*acquisition{}, ops: map[string][]op{}, releases: map[int64]span{}}
}

func (r *registry) add(l *acquisition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acquisitions[l.uuid] = l
}

func (r *registry) note(name string, o op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.kind == acquired {
		r.count++
	}
	r.ops[name] = append(r.ops[name], o)
}

func (r *registry) released(revision int64, s span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releases[revision] = s
}

// locked returns the number of locks that were acquired.
func (r *registry) locked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

func (r *registry) acquisition(uuid string) *acquisition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acquisitions[uuid]
}
