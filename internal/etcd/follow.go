package etcd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// FollowerOptions are the options of NewFollower; all are required.
type FollowerOptions struct {
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
	// Optional is set if the prefix may be missing from the role: then that is logged once.
	Optional bool
	Logger   *slog.Logger
}

// Event is a key that was written or deleted.
type Event struct {
	// Key is without the prefix.
	Key string
	// Value is nil if the key was deleted, and otherwise at most MaxSize bytes long.
	Value []byte
	// Revision is that of the write, and Created the create_revision. Both are 0 if a listing showed that the key is gone.
	Revision, Created int64
	Deleted           bool
	// First reports whether the key is one of the first listing, and so may have been there
	// before this process.
	First bool
}

// FollowerStatus is what is known of the prefix.
type FollowerStatus struct {
	// Synced reports whether what was passed on is what etcd has, as far as the watch shows: all of
	// a listing was passed on, and the watch has not failed since, by itself or by silence.
	Synced bool
	// Listed reports whether it was ever listed.
	Listed bool
	// Omitted counts the keys that were not passed on: more than MaxKeys, or longer than MaxSize. While they are
	// written and deleted, it is right within seconds.
	Omitted int
	// Newest is the newest mod_revision of the keys that were seen, also of those that were not passed on. It is
	// 0 from the end of a watch to the next listing: etcd may have been restored at a lower revision.
	Newest int64
	// Err is why the prefix is not synced; nil before the first failure.
	Err error
}

// Follower follows a small prefix while it runs: it passes what differs from the keys that were
// passed on before to one callback, one call at a time. What the watch shows comes in the order in
// which it was written; of a listing come first the keys that were written, then those that are
// gone. Of the writes made while the prefix was not synced, only the last of each key is passed on.
// Number and size of the keys are limited, since any client may have written them.
type Follower struct {
	FollowerOptions
	// known is the newest revision of each key that was passed on, and levels are those of the
	// messages. Only Run uses them.
	known  map[string]int64
	levels Levels

	mu     sync.Mutex
	status FollowerStatus
}

// NewFollower returns a Follower that does nothing until Run is called.
func NewFollower(o FollowerOptions) (*Follower, error) {
	switch {
	case o.Client == nil, o.Prefix == "", o.On == nil, o.Explain == nil, o.Logger == nil:
		return nil, errors.New("etcd: Client, Prefix, On, Explain and Logger are required")
	case o.RequestTimeout <= 0, o.Freshness <= 0, o.MaxKeys <= 0, o.MaxSize <= 0:
		return nil, errors.New("etcd: RequestTimeout, Freshness, MaxKeys and MaxSize must be positive")
	}
	return &Follower{FollowerOptions: o, known: make(map[string]int64), levels: make(Levels)}, nil
}

// Status returns the present status. It may be called concurrently with Run.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) set(edit func(*FollowerStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit(&f.status)
}

// relistInterval is the minimum time between two listings for keys that were omitted: a
// listing may be large, and every deletion makes room.
const relistInterval = time.Second

// Run follows the prefix until ctx is done, and then returns nil. No failure of etcd ends it.
func (f *Follower) Run(ctx context.Context) error {
	return Loop{List: f.list, Failed: f.failed}.Run(ctx)
}

func (f *Follower) failed(ctx context.Context, err error) error {
	f.set(func(s *FollowerStatus) { s.Newest = 0 })
	if errors.Is(err, errRelist) {
		return nil // a prefix that is only listed again stays synced
	}
	err = f.Explain(err)
	if before := f.Status().Err; !f.Optional || before == nil || before.Error() != err.Error() {
		f.warn(ctx, api.LogPrefixFailed, "error", err)
	}
	f.set(func(s *FollowerStatus) { s.Synced, s.Err = false, err })
	return nil
}

func (f *Follower) warn(ctx context.Context, msg string, args ...any) {
	f.Logger.Log(ctx, f.levels.Of(msg), msg, append([]any{"prefix", f.Prefix}, args...)...)
}

// omit notes how many keys are not passed on.
func (f *Follower) omit(ctx context.Context, omitted int) {
	if omitted > 0 && f.Status().Omitted == 0 {
		f.warn(ctx, api.LogKeysOmitted, "max_keys", f.MaxKeys, "max_size", f.MaxSize)
	}
	f.set(func(s *FollowerStatus) { s.Omitted = omitted })
}

func (f *Follower) list(ctx context.Context) (Watch, error) {
	// A prefix that is listed again stays synced meanwhile, but not for longer than a silent watch.
	stale := time.AfterFunc(f.Freshness, func() {
		f.set(func(s *FollowerStatus) {
			if s.Synced {
				s.Synced, s.Err = false, ErrSilent
			}
		})
	})
	revision, err := f.read(ctx)
	if err != nil {
		stale.Stop()
		return Watch{}, err
	}
	f.set(func(s *FollowerStatus) { s.Listed = true })
	return f.watch(revision, stale), nil
}

// watch returns the watch that passes on what is written after a revision. Its first response
// stops the timer stale.
func (f *Follower) watch(revision int64, stale *time.Timer) Watch {
	relist := make(chan struct{}) // closed once there is room for a key that was omitted
	var room *time.Timer
	return Watch{
		Client: f.Client, Key: f.Prefix,
		Options: []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithFragment(), clientv3.WithCreatedNotify()},
		Silence: f.Freshness,
		Opened: func(streams int64) error {
			if streams > 1 {
				return errRelist
			}
			return nil
		},
		Each: func(ctx context.Context, r clientv3.WatchResponse) error {
			if f.pass(ctx, r.Events, revision) && room == nil {
				room = time.AfterFunc(relistInterval, func() { close(relist) }) // meanwhile the watch continues
			}
			stale.Stop()
			// Only now: a watch that never starts shows nothing of what follows the listing.
			f.set(func(s *FollowerStatus) { s.Synced, s.Err = true, nil })
			return nil
		},
		During: func(ctx context.Context, _ func(context.Context) error) error {
			defer stale.Stop()
			select {
			case <-relist:
				return errRelist
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

// pass passes on events that are newer than the listing, and reports whether there is room for a
// key that was omitted.
func (f *Follower) pass(ctx context.Context, events []*clientv3.Event, listed int64) (room bool) {
	newest := int64(0)
	for _, ev := range events {
		if ev.Kv.ModRevision <= listed {
			continue
		}
		_, known := f.known[f.key(ev.Kv)]
		switch {
		case ev.Type == mvccpb.DELETE && known:
			f.gone(f.key(ev.Kv), ev.Kv.ModRevision)
		case ev.Type != mvccpb.DELETE && f.fits(ev.Kv) && (known || len(f.known) < f.MaxKeys):
			f.written(ev.Kv)
		case ev.Type != mvccpb.DELETE:
			f.omit(ctx, f.Status().Omitted+1)
		}
		if ev.Type != mvccpb.DELETE {
			newest = ev.Kv.ModRevision
		}
		room = room || ev.Type == mvccpb.DELETE && f.Status().Omitted > 0
	}
	f.set(func(s *FollowerStatus) { s.Newest = max(s.Newest, newest) }) // now that all of that revision were passed on
	return room
}

// read passes on what differs from what is known, and returns the revision of the listing.
func (f *Follower) read(ctx context.Context) (revision int64, err error) {
	found, omitted, newest := make(map[string]bool), 0, int64(0)
	err = Pages(ctx, f.Client, f.Prefix, clientv3.GetPrefixRangeEnd(f.Prefix), 0, SmallPage, f.RequestTimeout, func(page *clientv3.GetResponse) error {
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			newest = max(newest, kv.ModRevision)
			if !f.fits(kv) || len(found) == f.MaxKeys {
				omitted++
				continue
			}
			found[f.key(kv)] = true
			f.written(kv)
		}
		if page.More && len(found) == f.MaxKeys {
			omitted += int(page.Count) - len(page.Kvs)
			return ErrEnough
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	f.omit(ctx, omitted) // before a key that is omitted from now on is passed on as gone
	for key := range f.known {
		if !found[key] {
			f.gone(key, 0)
		}
	}
	f.set(func(s *FollowerStatus) { s.Newest = newest }) // lower than before, if etcd was restored
	return revision, nil
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
	f.On(Event{Key: key, Value: kv.Value[:min(len(kv.Value), f.MaxSize)], Revision: kv.ModRevision, Created: kv.CreateRevision, First: !f.Status().Listed})
}

func (f *Follower) gone(key string, revision int64) {
	delete(f.known, key)
	f.On(Event{Key: key, Revision: revision, Deleted: true})
}
