package native_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/native"
)

func TestMutexWithWaiters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t)).run()
	began := time.Now()
	sessions := w.queue(w.Prefix+"deploy/web", 4)
	other := w.queue(w.Prefix+"billing", 1)
	p := w.prefix(func(p api.NativePrefix) bool { return p.Held == 2 && p.Waiting == 3 })
	require.Empty(t, p.Error)
	require.Equal(t, w.Prefix, p.Prefix)
	require.Positive(t, p.Revision)
	require.Len(t, p.Holders, 2, "the older one first")
	h := p.Holders[0]
	var want string
	for _, s := range sessions {
		want += " " + leaseOf(s) + ":alive"
	}
	require.Equal(t, w.Prefix+"deploy/web"+want, shows(h))
	require.Equal(t, w.Prefix+"deploy/web/"+leaseOf(sessions[0]), h.Key)
	require.EqualValues(t, 60, h.GrantedTTL)
	require.Greater(t, h.TTL, int64(30))
	require.Empty(t, h.Value)
	require.WithinRange(t, h.Since, began, time.Now())
	require.Less(t, h.Revision, h.Waiters[0].Revision)
	require.Less(t, h.Waiters[1].Revision, h.Waiters[2].Revision)
	require.Equal(t, w.Prefix+"billing "+leaseOf(other[0])+":alive", shows(p.Holders[1]))

	listed := w.Listings()
	require.Len(t, listed, 1)
	require.Equal(t, w.Prefix, listed[0].Prefix)
	require.Equal(t, 2, listed[0].Held)
	require.Equal(t, h.Since, listed[0].Oldest)
	released := time.Now()
	require.NoError(t, sessions[0].Close())
	p = w.prefix(func(p api.NativePrefix) bool { return p.Held == 2 && p.Waiting == 2 })
	require.Equal(t, w.Prefix+"deploy/web "+leaseOf(sessions[1])+":alive "+leaseOf(sessions[2])+":alive "+leaseOf(sessions[3])+":alive",
		shows(p.Holders[0]), "the next in turn")
	require.WithinRange(t, p.Holders[0].Since, released, time.Now())
	require.Equal(t, p.Holders[1].Since, w.Listings()[0].Oldest, "the other one has been held longer now")
}

func TestElection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t)).run()
	leader, candidate := w.session(), w.session()
	name, value := w.Prefix+"leader", "host-1\x1b[2J\xff"+strings.Repeat("x", 2000)
	require.NoError(t, concurrency.NewElection(leader, name).Campaign(t.Context(), value))
	w.wait(name, func(ctx context.Context) error {
		return concurrency.NewElection(candidate, name).Campaign(ctx, "host-2")
	})
	p := w.prefix(func(p api.NativePrefix) bool { return p.Waiting == 1 })
	h := p.Holders[0]
	require.Equal(t, name+" "+leaseOf(leader)+":alive "+leaseOf(candidate)+":alive", shows(h))
	require.True(t, strings.HasPrefix(h.Value, "host-1\x1b[2J\uFFFDxxx"))
	require.Less(t, len(h.Value), 1100)
	require.Equal(t, len(value), h.TruncatedFrom)
	require.Equal(t, "host-2", h.Waiters[0].Value)
	require.Zero(t, h.Waiters[0].TruncatedFrom)
}

// Mutexes wait for each other where the name of one is below that of another, and for any key.
func TestOldestKeyBelowTheNameHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t)).run()
	inner := w.queue(w.Prefix+"a/b", 1)
	outer := concurrency.NewMutex(w.session(), w.Prefix+"a")
	require.ErrorIs(t, outer.TryLock(t.Context()), concurrency.ErrLocked)
	w.wait(w.Prefix+"a", func(ctx context.Context) error { return outer.Lock(ctx) })
	w.put(w.Prefix+"c/README", "not a lock")
	blocked := w.session()
	w.wait(w.Prefix+"c", func(ctx context.Context) error { return concurrency.NewMutex(blocked, w.Prefix+"c").Lock(ctx) })

	p := w.prefix(func(p api.NativePrefix) bool { return p.Held == 1 && p.Waiting == 2 && p.Other == 1 })
	require.Len(t, p.Holders, 3)
	for _, h := range p.Holders[:2] {
		require.Equal(t, w.Prefix+"a/b/"+leaseOf(inner[0]), h.Key, h.Name)
	}
	require.Equal(t, []string{w.Prefix + "a", w.Prefix + "a/b"}, []string{p.Holders[0].Name, p.Holders[1].Name})
	require.True(t, p.Holders[0].Foreign)
	require.Len(t, p.Holders[0].Waiters, 1)
	require.False(t, p.Holders[1].Foreign)
	require.Empty(t, p.Holders[1].Waiters)
	require.Equal(t, w.Prefix+"c 0:none "+leaseOf(blocked)+":alive", shows(p.Holders[2]))
	require.True(t, p.Holders[2].Foreign)
}

func TestLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t))
	// What reads a lease finds it revoked since the key was read.
	client := w.Connect()
	client.Lease = revoking{client.Lease}
	revoked := newWorld(t, w.Etcd, func(o *native.Options) { o.Client = client })

	s := w.session()
	require.NoError(t, concurrency.NewMutex(s, w.Prefix+"gone").Lock(t.Context()))
	w.put(w.Prefix+"none/694d8a1b2c3d4e5f", "put by hand")
	revoked.run()
	p := revoked.prefix(func(p api.NativePrefix) bool { return p.Held == 2 })
	require.Equal(t, w.Prefix+"gone "+leaseOf(s)+":gone", shows(p.Holders[0]))
	require.Zero(t, p.Holders[0].GrantedTTL)
	require.Equal(t, w.Prefix+"none 0:none", shows(p.Holders[1]))
	w.run()
	p = w.prefix(func(p api.NativePrefix) bool { return p.Held == 1 })
	require.Equal(t, w.Prefix+"none 0:none", shows(p.Holders[0]), "its keys went with the lease")
}

type revoking struct{ clientv3.Lease }

func (r revoking) TimeToLive(ctx context.Context, id clientv3.LeaseID, options ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	if _, err := r.Revoke(ctx, id); err != nil {
		return nil, err
	}
	return r.Lease.TimeToLive(ctx, id, options...)
}

// A view shows what is there now: what was released since the listing is left out.
func TestReleasedSinceTheListing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t), func(o *native.Options) { o.Interval = time.Hour })
	sessions := w.queue(w.Prefix+"a", 3)
	alone := w.queue(w.Prefix+"b", 1)
	w.put(w.Prefix+"c/x", "blocks")
	w.put(w.Prefix+"c/1f", "waits")
	w.run()
	etcdtest.Eventually(t, func() bool { return len(w.Listings()) == 1 })
	for _, s := range []*concurrency.Session{sessions[0], sessions[2], alone[0]} {
		require.NoError(t, s.Close())
	}
	_, err := w.Client.Delete(t.Context(), w.Prefix+"c/x")
	require.NoError(t, err)
	p := w.prefix(func(api.NativePrefix) bool { return true })
	require.Len(t, p.Holders, 2)
	require.Equal(t, w.Prefix+"c 0:none", shows(p.Holders[1]))
	require.False(t, p.Holders[1].Foreign)
	require.Equal(t, w.Prefix+"a "+leaseOf(sessions[1])+":alive", shows(p.Holders[0]))
	require.Zero(t, p.Holders[0].MoreWaiters)
	require.Equal(t, 2, p.Held, "as listed")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t))
	for lock := range 30 {
		for key := range 20 {
			name := w.Prefix + strings.Repeat("n", 30-lock)
			w.put(name+"/"+string("123456789abcdefghijk"[key])+"0", "")
		}
	}
	w.run()
	p := w.prefix(func(p api.NativePrefix) bool { return p.Held == 30 })
	require.Equal(t, 30*15-30, p.Waiting, "g0 to k0 are no leases")
	require.Equal(t, 30*5, p.Other)
	require.Len(t, p.Holders, 10)
	require.Equal(t, 20, p.MoreHolders)
	require.Equal(t, w.Prefix+strings.Repeat("n", 30), p.Holders[0].Name, "the oldest is kept")
	require.Len(t, p.Holders[9].Waiters, 5)
	require.Equal(t, 9, p.Holders[9].MoreWaiters)
	require.Equal(t, []string{"10", "20", "30", "40", "50", "60"}, func() (last []string) {
		for _, k := range append([]api.NativeKey{p.Holders[9].NativeKey}, p.Holders[9].Waiters...) {
			last = append(last, k.Key[strings.LastIndexByte(k.Key, '/')+1:])
		}
		return last
	}())

	for i := range 401 {
		w.put(w.Prefix+"more/"+strings.Repeat("x", i), "")
	}
	p = w.prefix(func(p api.NativePrefix) bool { return p.Error != "" })
	require.Equal(t, "1001 keys below "+w.Prefix+": at most 1000 are read", p.Error)
	require.Equal(t, 30, p.Held, "as listed before")
	require.Empty(t, w.Listings(), "no metric")
	for i, line := range w.log.Lines(api.LogNativeNotListed) {
		require.Equal(t, i == 0, line["level"] == "WARN", "a warning a minute")
	}
}

// Keys that any client may have written.
func TestHostileKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shared.Start(t))
	long := strings.Repeat("/", 1<<20)
	for _, key := range []string{
		"", "/", "//1f", "a//1f", "e\x1b[2J\u202e\xff/1f", "neg/-1f", "zero/0", "upper/1F", "padded/001f", "plus/+1f", "huge/1ffffffffffffffff",
		"min/-8000000000000000", long + "1f", strings.Repeat("d/", 500) + "1f", "spaces/1f ",
	} {
		w.put(w.Prefix+key, "v")
	}
	w.run()
	p := w.prefix(func(p api.NativePrefix) bool { return p.Revision > 0 })
	var names []string
	for _, h := range p.Holders {
		names = append(names, strings.TrimPrefix(h.Name, w.Prefix))
	}
	require.Equal(t, []string{"/", "a/", "e\x1b[2J\u202e\uFFFD", "neg", "min", strings.TrimSuffix(strings.Repeat("d/", 500), "/")}, names)
	require.Equal(t, 9, p.Other)
	require.Equal(t, "0", p.Holders[0].Lease)
	require.Equal(t, api.LeaseNone, p.Holders[0].LeaseState)
}

func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Guard("unlocker", "pw", "/mine/")
	client := e.Connect(func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" })
	w := newWorld(t, e, func(o *native.Options) {
		o.Client, o.Prefixes = client, []string{"/mine/", "/theirs/"}
		o.Explain = func(err error, prefix string) error {
			if err != nil && prefix == "/theirs/" {
				return errRefused
			}
			return err
		}
	})
	held := w.session() // of root, whose rights on the lease the observer does not need
	require.NoError(t, concurrency.NewMutex(held, "/mine/a").Lock(t.Context()))
	require.NoError(t, concurrency.NewMutex(held, "/theirs/a").Lock(t.Context()))
	w.run()
	var list api.NativeList
	etcdtest.Eventually(t, func() bool {
		var err error
		list, err = w.View(t.Context())
		require.NoError(t, err)
		mine := list.Prefixes[0]
		return mine.Held == 1 && !slices.ContainsFunc(mine.Holders, unread) && list.Prefixes[1].Error != ""
	})
	require.Equal(t, api.LeaseAlive, list.Prefixes[0].Holders[0].LeaseState)
	require.Equal(t, api.NativePrefix{Prefix: "/theirs/", Error: "refused", Holders: []api.NativeHolder{}}, list.Prefixes[1])
	require.Len(t, w.Listings(), 1)
	require.Equal(t, "/mine/", w.Listings()[0].Prefix)
	_, err := e.Client.RoleGrantPermission(t.Context(), "unlocker", "/theirs/", "/theirs0", clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	etcdtest.Eventually(t, func() bool { return len(w.Listings()) == 2 })
}

// Without etcd a view has the last listing, and does not wait for long.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	client := e.Connect(func(c *clientv3.Config) { c.Endpoints = []string{proxy.Addr()} })
	w := newWorld(t, e, func(o *native.Options) { o.Client, o.RequestTimeout = client, 200*time.Millisecond })
	s := w.queue(w.Prefix+"a", 1)
	w.run()
	since := w.prefix(func(p api.NativePrefix) bool { return p.Held == 1 && p.Error == "" }).Holders[0].Since
	proxy.Blackhole()
	began := time.Now()
	p := w.prefix(func(p api.NativePrefix) bool { return p.Error != "" })
	require.Less(t, time.Since(began), etcdtest.Soon/2)
	require.Equal(t, w.Prefix+"a "+leaseOf(s[0])+":unknown", shows(p.Holders[0]), "the lease in its name")
	require.Equal(t, 1, p.Held)
	require.NoError(t, proxy.Heal())
	p = w.prefix(func(p api.NativePrefix) bool { return p.Error == "" })
	require.Equal(t, since, p.Holders[0].Since, "the same holder")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	etcdtest.Eventually(t, func() bool {
		_, err := w.View(ctx)
		return errors.Is(err, context.Canceled)
	})
}

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	_, err := native.New(native.Options{})
	require.ErrorContains(t, err, "Client")
}

// counting counts the reads, each of which takes a while.
type counting struct {
	clientv3.KV
	takes time.Duration
	mu    sync.Mutex
	keys  int
	pages []time.Time
}

func (c *counting) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	c.mu.Lock()
	if op := clientv3.OpGet(key, options...); op.IsKeysOnly() {
		c.pages = append(c.pages, time.Now())
	} else {
		c.keys++
	}
	c.mu.Unlock()
	<-time.After(c.takes)
	return c.KV.Get(ctx, key, options...)
}

func (c *counting) reads() (keys int, pages []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys, slices.Clone(c.pages)
}

func TestViewReadsALimitedNumberOfKeysOnceASecond(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	client := e.Connect()
	kv := &counting{KV: client.KV}
	client.KV = kv
	w := newWorld(t, e, func(o *native.Options) {
		o.Client, o.Interval, o.Limits = client, time.Hour, native.Limits{Keys: 1000, Locks: 1000, Waiters: 1000}
	})
	for i := range 600 {
		w.put(fmt.Sprintf("%sa/%x", w.Prefix, i+1), "")
	}
	w.put(w.Prefix+"b/1", "")
	w.run()
	etcdtest.Eventually(t, func() bool { return len(w.Listings()) == 1 })
	began := time.Now()
	limited := func() (keys int) {
		keys, _ = kv.reads()
		require.Zero(t, keys%512)
		require.LessOrEqual(t, keys, 512*(1+int(time.Since(began)/time.Second)))
		return keys
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { _, _ = w.View(context.Background()) })
	}
	all.Wait()
	require.Positive(t, limited())
	var a, b api.NativeHolder
	etcdtest.Eventually(t, func() bool { // unless etcd took too long
		list, err := w.View(t.Context())
		require.NoError(t, err)
		a, b = list.Prefixes[0].Holders[0], list.Prefixes[0].Holders[1]
		return a.Waiters[509].LeaseState == api.LeaseNone
	})
	require.Equal(t, api.LeaseNone, b.LeaseState, "holders first")
	require.Equal(t, api.LeaseUnknown, a.Waiters[510].LeaseState)
	before := limited()
	etcdtest.Eventually(t, func() bool {
		_, err := w.View(t.Context())
		require.NoError(t, err)
		return limited() > before
	})
}

// Listing costs etcd a small share of its time.
func TestPauseAfterALongListing(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	client := e.Connect()
	const takes = 30 * time.Millisecond
	kv := &counting{KV: client.KV, takes: takes}
	client.KV = kv
	newWorld(t, e, func(o *native.Options) { o.Client = client }).run()
	var pages []time.Time
	etcdtest.Eventually(t, func() bool {
		_, pages = kv.reads()
		return len(pages) >= 2
	})
	require.GreaterOrEqual(t, pages[1].Sub(pages[0]), 21*takes)
}
