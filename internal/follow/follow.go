package follow

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// Options are the options of New; all are required.
type Options struct {
	Client *clientv3.Client
	// Prefix ends with a slash.
	Prefix string
	// RequestTimeout limits each request.
	RequestTimeout time.Duration
	// Freshness is how long the watch may show neither an event nor a progress notice.
	Freshness time.Duration
	// MaxKeys is the maximum number of keys, MaxSize that of the bytes of a value, and of a
	// key after the prefix.
	MaxKeys, MaxSize int
	// On receives each event. It must not block: etcd's client buffers what waits for it
	// without a limit.
	On func(Event)
	// Explain adds the missing permission to an error of etcd.
	Explain func(error) error
	Logger  *slog.Logger
}

// Event is a key that was written or deleted.
type Event struct {
	// Key is without the prefix.
	Key string
	// Value is nil if the key was deleted, and otherwise at most MaxSize bytes long.
	Value []byte
	// Revision is that of the write. It is 0 if a listing showed that the key is gone.
	Revision int64
	Deleted  bool
	// First reports whether the key is one of the first listing, and so may have been there
	// before this process.
	First bool
}

// Status is what is known of the prefix.
type Status struct {
	// InView reports whether what was passed on is what etcd has, as far as the watch shows.
	InView bool
	// Listed reports whether it was ever listed.
	Listed bool
	// Omitted reports whether there are keys that were not passed on: more than MaxKeys, or
	// longer than MaxSize.
	Omitted bool
	// Err is why the prefix is not in view; nil before the first failure.
	Err error
}

// Follower follows a prefix while it runs.
type Follower struct {
	Options
	// known is the newest revision of each key that was passed on, and warned has when each
	// message was last logged as a warning. Only Run uses them.
	known  map[string]int64
	warned map[string]time.Time

	mu     sync.Mutex
	status Status
}

// New returns a Follower that does nothing until Run is called.
func New(o Options) (*Follower, error) {
	switch {
	case o.Client == nil, o.Prefix == "", o.On == nil, o.Explain == nil, o.Logger == nil:
		return nil, errors.New("follow: Client, Prefix, On, Explain and Logger are required")
	case o.RequestTimeout <= 0, o.Freshness <= 0, o.MaxKeys <= 0, o.MaxSize <= 0:
		return nil, errors.New("follow: RequestTimeout, Freshness, MaxKeys and MaxSize must be positive")
	}
	return &Follower{Options: o, known: make(map[string]int64), warned: make(map[string]time.Time)}, nil
}

// Status returns the present status. It may be called concurrently with Run.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) set(edit func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit(&f.status)
}

const (
	// The pause after a failure doubles from minBackoff to maxBackoff, with jitter. It begins
	// again after a watch that lasted longer than the freshness.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// relistInterval is the minimum time between two listings for keys that were omitted: a
	// listing may be large, and every deletion makes room.
	relistInterval = time.Second
	// warnInterval is the minimum time between two warnings of the same kind.
	warnInterval = time.Minute
)

// Run follows the prefix until ctx is done, and then returns nil. No failure of etcd ends it.
func (f *Follower) Run(ctx context.Context) error {
	for backoff := minBackoff; ; {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the failure of a session that was stopped
		}
		if time.Since(began) > f.Freshness {
			backoff = minBackoff
		}
		pause := minBackoff // no longer: what is listed again is still in view
		if !errors.Is(err, errAgain) {
			f.failed(ctx, err)
			pause, backoff = backoff, min(2*backoff, maxBackoff)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *Follower) failed(ctx context.Context, err error) {
	err = f.Explain(err)
	f.set(func(s *Status) { s.InView, s.Err = false, err })
	f.warn(ctx, api.LogNotInView, "error", err)
}

func (f *Follower) warn(ctx context.Context, msg string, args ...any) {
	level := slog.LevelDebug
	if time.Since(f.warned[msg]) >= warnInterval {
		level, f.warned[msg] = slog.LevelWarn, time.Now()
	}
	f.Logger.Log(ctx, level, msg, append([]any{"prefix", f.Prefix}, args...)...)
}

// omit notes whether there are keys that are not passed on.
func (f *Follower) omit(ctx context.Context, omitted bool) {
	if omitted && !f.Status().Omitted {
		f.warn(ctx, api.LogKeysOmitted, "max_keys", f.MaxKeys, "max_size", f.MaxSize)
	}
	f.set(func(s *Status) { s.Omitted = omitted })
}

// session lists once and watches until the watch fails.
func (f *Follower) session(ctx context.Context) error {
	// What is listed again stays in view meanwhile, but not for longer than a silent watch.
	stale := time.AfterFunc(f.Freshness, func() {
		f.set(func(s *Status) {
			if s.InView {
				s.InView, s.Err = false, etcd.ErrSilent
			}
		})
	})
	defer stale.Stop()
	revision, err := f.list(ctx)
	if err != nil {
		return err
	}
	f.set(func(s *Status) { s.Listed = true })
	return f.watch(ctx, revision, stale)
}

// pageKeys is how many keys one answer of a listing has: few, since their values may be big.
const pageKeys = 16

// list passes on what differs from what is known, and returns the revision of the listing.
func (f *Follower) list(ctx context.Context) (revision int64, err error) {
	found, omitted := make(map[string]bool), false
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(f.Prefix))
	for from, more := f.Prefix, true; more; {
		page, err := f.page(ctx, from, end, clientv3.WithLimit(pageKeys), clientv3.WithRev(revision))
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			from = string(kv.Key) + "\x00"
			if !f.fits(kv) || len(found) == f.MaxKeys {
				omitted = true
				continue
			}
			found[f.key(kv)] = true
			f.written(kv)
		}
		more = page.More && len(found) < f.MaxKeys
		omitted = omitted || page.More && !more
	}
	f.omit(ctx, omitted) // before a key that is omitted from now on is passed on as gone
	for key := range f.known {
		if !found[key] {
			f.gone(key, 0)
		}
	}
	return revision, nil
}

func (f *Follower) page(ctx context.Context, from string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, f.RequestTimeout)
	defer cancel()
	return f.Client.Get(ctx, from, options...)
}

func (f *Follower) key(kv *mvccpb.KeyValue) string { return string(kv.Key[len(f.Prefix):]) }

func (f *Follower) fits(kv *mvccpb.KeyValue) bool { return len(kv.Key)-len(f.Prefix) <= f.MaxSize }

// written passes on a key unless this write of it was.
func (f *Follower) written(kv *mvccpb.KeyValue) {
	key := f.key(kv)
	if f.known[key] == kv.ModRevision {
		return
	}
	f.known[key] = kv.ModRevision
	f.On(Event{Key: key, Value: kv.Value[:min(len(kv.Value), f.MaxSize)], Revision: kv.ModRevision, First: !f.Status().Listed})
}

func (f *Follower) gone(key string, revision int64) {
	delete(f.known, key)
	f.On(Event{Key: key, Revision: revision, Deleted: true})
}
