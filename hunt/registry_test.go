//go:build hunt

package hunt

import "sync"

// registry holds what the owners did.
type registry struct {
	mu    sync.Mutex
	lives map[string]*life
	ops   map[string][]op
	// left are the unlocks that were answered, by revision.
	left  map[int64]span
	count int
}

// op is what an owner learned of a lock: token is whose it was.
type op struct {
	kind  kind
	token int64
	span
}

// kind is what an op tells.
type kind string

const (
	took  kind = "took"  // the lock was free and is now token's
	met   kind = "met"   // it was token's, another owner
	alive kind = "alive" // it was token's, who renewed it
	lost  kind = "lost"  // it was no longer token's
	ended kind = "ended" // it was token's and is free, unlocked or removed
)

func newRegistry() *registry {
	return &registry{lives: map[string]*life{}, ops: map[string][]op{}, left: map[int64]span{}}
}

func (r *registry) add(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lives[l.uuid] = l
}

func (r *registry) note(name string, o op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.kind == took {
		r.count++
	}
	r.ops[name] = append(r.ops[name], o)
}

func (r *registry) leave(revision int64, s span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[revision] = s
}

// locked returns how many locks were taken.
func (r *registry) locked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

func (r *registry) life(uuid string) *life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lives[uuid]
}
