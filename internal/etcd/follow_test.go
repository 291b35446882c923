package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

const (
	freshness = 8 * time.Second
	maxKeys   = 20
	maxSize   = 100
)

// followed is a prefix and its follower.
type followed struct {
	*etcd.Follower
	t      *testing.T
	direct *clientv3.Client // which no fault affects
	log    etcdtest.Log

	mu     sync.Mutex
	events []string
	// first are the keys of the first listing.
	first  []string
	values map[string]string
}

// follow runs a follower until the test ends.
func follow(t *testing.T, direct, client *clientv3.Client, edits ...func(*etcd.FollowerOptions)) *followed {
	t.Helper()
	f := &followed{t: t, direct: direct, values: make(map[string]string)}
	o := etcd.FollowerOptions{
		Client: client, Prefix: "/a/", RequestTimeout: 5 * time.Second, Freshness: freshness,
		MaxKeys: maxKeys, MaxSize: maxSize, On: f.on, Logger: f.log.Logger(),
		Explain: func(err error) error { return err },
	}
	for _, edit := range edits {
		edit(&o)
	}
	var err error
	f.Follower, err = etcd.NewFollower(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return f
}

func (f *followed) on(e etcd.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Deleted {
		f.events = append(f.events, "-"+e.Key)
		delete(f.values, e.Key)
		return
	}
	f.events = append(f.events, fmt.Sprintf("+%s=%.20s", e.Key, e.Value))
	if e.First {
		f.first = append(f.first, e.Key)
	}
	f.values[e.Key] = string(e.Value)
}

func (f *followed) shown() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.events...)
}

func (f *followed) value(key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.values[key]
}

func (f *followed) put(pairs ...string) {
	f.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		_, err := f.direct.Put(f.t.Context(), "/a/"+pairs[i], pairs[i+1])
		require.NoError(f.t, err)
	}
}

func (f *followed) remove(keys ...string) {
	f.t.Helper()
	for _, key := range keys {
		_, err := f.direct.Delete(f.t.Context(), "/a/"+key)
		require.NoError(f.t, err)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Put(clientv3.OpPut("/a/a", "1"), clientv3.OpPut("/a/b/c", "2"))
	f := follow(t, e.Client, e.Client)
	shows := func(want ...string) {
		t.Helper()
		etcdtest.Eventually(t, func() bool { return len(f.shown()) >= len(want) }, "events")
		require.Equal(t, want, f.shown())
	}
	etcdtest.Eventually(t, func() bool { return f.Status().Synced })
	shows("+a=1", "+b/c=2")
	lease, err := e.Client.Grant(t.Context(), 60)
	require.NoError(t, err)
	_, err = e.Client.Put(t.Context(), "/a/d", strings.Repeat("x", maxSize+1), clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	f.put("a", "3", "a", "3")
	f.remove("b/c", "a")
	_, err = e.Client.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	shows("+a=1", "+b/c=2", "+d="+strings.Repeat("x", 20), "+a=3", "+a=3", "-b/c", "-a", "-d")
	status := f.Status()
	require.Equal(t, etcd.FollowerStatus{Synced: true, Listed: true, Newest: status.Newest}, status)
	require.Positive(t, status.Newest)
}

// bubbled is a follower on an etcd in memory, under virtual time.
type bubbled struct {
	*followed
	cluster *memetcd.Cluster
	link    *memetcd.Link

	mu       sync.Mutex
	listings []time.Time
	faults   []memetcd.Faults // of the next listings
	limits   []int64          // of all pages
}

// bubble runs a test with a follower of keys that begin puts. The watch has just shown a progress
// notice.
func bubble(t *testing.T, begin []string, test func(*testing.T, *bubbled), edits ...func(*bubbled)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubbled{cluster: memetcd.New(memetcd.Options{})}
		t.Cleanup(func() { require.NoError(t, b.cluster.Close()) })
		direct, err := b.cluster.Connect()
		require.NoError(t, err)
		b.link, err = b.cluster.Connect(func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" })
		require.NoError(t, err)
		b.link.OnRequest(b.request)
		b.followed = &followed{t: t, direct: direct.Client}
		b.put(begin...)
		for _, edit := range edits {
			edit(b)
		}
		b.followed = follow(t, direct.Client, b.link.Client)
		<-time.After(freshness / 4) // when the watch has just shown progress again
		synctest.Wait()
		test(t, b)
	})
}

// request counts the listings, and gives each its faults.
func (b *bubbled) request(req memetcd.Message) (faults memetcd.Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, read := req.(*etcdserverpb.RangeRequest)
	if read {
		b.limits = append(b.limits, r.Limit)
	}
	if !read || string(r.Key) != "/a/" {
		return faults
	}
	b.listings = append(b.listings, time.Now())
	if len(b.faults) > 0 {
		faults, b.faults = b.faults[0], b.faults[1:]
	}
	return faults
}

// fail makes the next n listings hang until their timeout.
func (b *bubbled) fail(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = slices.Repeat([]memetcd.Faults{{Request: time.Hour}}, n)
}

func (b *bubbled) listed() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time(nil), b.listings...)
}

// synced requires that the prefix is synced, or that it is not, after the time d.
func (b *bubbled) synced(want bool, d time.Duration) {
	b.t.Helper()
	<-time.After(d)
	synctest.Wait()
	require.Equal(b.t, want, b.Status().Synced, b.Status().Err)
}

func (b *bubbled) shows(want ...string) {
	b.t.Helper()
	synctest.Wait()
	require.Equal(b.t, want, b.shown())
}

func TestSizeIsLimited(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", maxSize)
	bubble(t, []string{long, strings.Repeat("x", maxSize), "cut", strings.Repeat("x", maxSize+1)}, func(t *testing.T, b *bubbled) {
		require.Equal(t, strings.Repeat("x", maxSize), b.value(long))
		require.Equal(t, strings.Repeat("x", maxSize), b.value("cut"))
		require.Zero(t, b.Status().Omitted)
		b.put(long+"k", "")
		b.synced(true, 0)
		require.Equal(t, 1, b.Status().Omitted)
		require.Len(t, b.shown(), 2)
		b.remove(long + "k")
		b.synced(true, 2*time.Second)
		require.Zero(t, b.Status().Omitted)
	})
}

func numbered(n int) (pairs []string) {
	for i := range n {
		pairs = append(pairs, fmt.Sprintf("%03d", i), "x")
	}
	return pairs
}

func TestNumberIsLimited(t *testing.T) {
	t.Parallel()
	bubble(t, numbered(maxKeys), func(t *testing.T, b *bubbled) {
		require.Len(t, b.shown(), maxKeys)
		require.Zero(t, b.Status().Omitted, "exactly as many as there may be")
		b.put("more", "1")
		b.synced(true, 0)
		require.Equal(t, 1, b.Status().Omitted)
		require.Len(t, b.log.Lines(api.LogKeysOmitted), 1)
		require.Len(t, b.shown(), maxKeys)

		late := follow(t, b.direct, b.direct)
		b.synced(true, 0)
		require.Equal(t, 1, late.Status().Omitted)
		require.Len(t, late.shown(), maxKeys)
		b.remove("000")
		b.synced(true, 2*time.Second)
		for _, f := range []*followed{b.followed, late} {
			require.Equal(t, "1", f.value("more"), "there is room again")
			require.Zero(t, f.Status().Omitted)
		}
	})
}

// Whoever may write a few small keys must not make the next page one of many large ones.
func TestPagesOfUnknownValuesStaySmall(t *testing.T) {
	t.Parallel()
	bubble(t, numbered(maxKeys), func(t *testing.T, b *bubbled) {
		require.Len(t, b.shown(), maxKeys)
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Equal(t, []int64{etcd.SmallPage, etcd.SmallPage}, b.limits)
	})
}

// While keys are omitted, each deletion makes room for one of them: that is not a listing each.
func TestDeletionsWhileKeysAreOmittedListOnce(t *testing.T) {
	t.Parallel()
	const n = 500
	bubble(t, numbered(n), func(t *testing.T, b *bubbled) {
		require.Equal(t, n-maxKeys, b.Status().Omitted)
		for i := range n - maxKeys/2 {
			b.remove(fmt.Sprintf("%03d", i))
			b.put("last", fmt.Sprint(i)) // no room for it, but the watch continues
			<-time.After(10 * time.Millisecond)
		}
		b.remove("last")
		b.synced(true, 3*time.Second)
		require.Zero(t, b.Status().Omitted)
		require.Equal(t, "x", b.value("499"), "all that is left is shown")
		require.LessOrEqual(t, len(b.listed()), 1+6, "one a second")
		require.Empty(t, b.log.Lines(api.LogPrefixFailed))
	})
}

// Only failures make the pause after a failure longer, not the listings after a watch was resumed.
func TestResumedWatchesDoNotDelayTheListingAfterAFailure(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		for i := range 7 {
			b.link.Break()
			b.synced(true, time.Second)
			require.Len(t, b.listed(), 2+i, "listed again")
		}
		n := len(b.listed())
		b.fail(1)
		b.link.Break()
		b.synced(true, freshness)
		at := b.listed()
		require.Len(t, at, n+2)
		require.WithinRange(t, at[n+1], at[n].Add(5*time.Second+50*time.Millisecond), at[n].Add(5*time.Second+100*time.Millisecond))
	})
}

// A compare with what was seen before a restore would let pass what was written after it, at a lower revision.
func TestS3_NewestIsUnknownUntilThePrefixIsListedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, []string{"a", "1"}, func(t *testing.T, b *bubbled) {
		newest := b.Status().Newest
		require.Positive(t, newest)
		b.fail(1)
		b.link.Break()
		b.synced(true, time.Second)
		require.Zero(t, b.Status().Newest)
		<-time.After(time.Minute)
		require.Equal(t, newest, b.Status().Newest)
	})
}

// What was written while the connection was lost is shown after it, and nothing twice.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	bubble(t, []string{"a", "1", "b", "1", "c", "1"}, func(t *testing.T, b *bubbled) {
		b.link.Set(memetcd.Unreachable())
		b.synced(true, freshness-1)
		b.synced(false, 1)
		require.ErrorIs(t, b.Status().Err, etcd.ErrSilent)
		b.remove("a")
		b.put("b", "2", "d", "1", "d", "2")
		_, err := b.direct.Compact(t.Context(), b.cluster.Revision())
		require.NoError(t, err)
		b.synced(false, time.Hour)
		b.link.Set(memetcd.Faults{})
		b.synced(true, 11*time.Second)
		b.shows("+a=1", "+b=1", "+c=1", "+b=2", "+d=2", "-a")
		require.Equal(t, []string{"a", "b", "c"}, b.first)
		require.InDelta(t, 57, len(warnings(b.followed)), 3, "a warning a minute")
	})
}

func warnings(f *followed) (lines []map[string]any) {
	for _, line := range f.log.Lines(api.LogPrefixFailed) {
		if line["level"] == "WARN" {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestIdleStaysSynced(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		for range 1000 {
			b.synced(true, freshness/3)
		}
		require.Empty(t, b.log.Lines(api.LogPrefixFailed))
		require.Len(t, b.listed(), 1)
	})
}

func TestFollowerFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault memetcd.Faults
		// within is how long the prefix stays synced after the fault began.
		within time.Duration
		first  string
	}{
		"no leader":   {memetcd.Faults{NoLeader: true}, 3 * time.Second, "etcdserver: no leader"},
		"etcd down":   {memetcd.Faults{Refuse: true}, freshness, etcd.ErrSilent.Error()},
		"no answers":  {memetcd.Faults{HoldAnswers: true}, freshness, etcd.ErrSilent.Error()},
		"no requests": {memetcd.Faults{HoldRequests: true}, freshness, etcd.ErrSilent.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, []string{"a", "1"}, func(t *testing.T, b *bubbled) {
				b.link.Set(c.fault)
				b.synced(true, c.within-1)
				b.synced(false, 1)
				require.ErrorContains(t, b.Status().Err, c.first)
				b.synced(false, time.Minute)
				b.link.Set(memetcd.Faults{})
				b.synced(true, 11*time.Second)
				require.NoError(t, b.Status().Err)
				b.put("b", "1")
				b.shows("+a=1", "+b=1")
			})
		})
	}
}

// One transaction writes two keys. A compare with its revision would let pass what the second one forbids.
func TestS3_NewestIsThatOfWhatWasPassedOn(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	var seen atomic.Pointer[followed]
	var early atomic.Int64
	f := follow(t, e.Client, e.Client, func(o *etcd.FollowerOptions) {
		on := o.On
		o.On = func(ev etcd.Event) {
			if f := seen.Load(); f != nil && f.Status().Newest >= ev.Revision {
				early.Add(1)
			}
			on(ev)
		}
	})
	seen.Store(f)
	etcdtest.Eventually(t, func() bool { return f.Status().Synced })
	e.Put(clientv3.OpPut("/a/a", "1"), clientv3.OpPut("/a/b", "1"))
	etcdtest.Eventually(t, func() bool { return f.Status().Newest > 0 && f.value("b") == "1" })
	require.Zero(t, early.Load())
}

// A restored etcd has fewer keys and an older revision. Where others have written past it, the
// client library resumes the watch as if nothing had happened.
func TestFollowerAfterARestore(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]int{"older": 0, "written past": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, []string{"old", "1"}, func(t *testing.T, b *bubbled) {
				backup := b.cluster.Snapshot()
				b.put("new", "1", "new", "2")
				b.shows("+old=1", "+new=1", "+new=2")
				b.link.Set(memetcd.Faults{Refuse: true})
				b.cluster.Restore(backup, memetcd.Restored{})
				for range writes {
					_, err := b.direct.Put(t.Context(), "/elsewhere", "")
					require.NoError(t, err)
				}
				b.link.Set(memetcd.Faults{})
				b.synced(true, time.Second)
				b.shows("+old=1", "+new=1", "+new=2", "-new")
				b.put("new", "3")
				b.shows("+old=1", "+new=1", "+new=2", "-new", "+new=3")
				require.Empty(t, b.log.Lines(api.LogPrefixFailed))
			})
		})
	}
}

func TestFollowerTokenExpires(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		for i := range 5 {
			b.cluster.ExpireTokens()
			b.synced(true, time.Hour)
			b.link.Break() // a new stream is needed
			b.put(fmt.Sprint(i), "1")
			b.synced(true, time.Second)
			require.Equal(t, "1", b.value(fmt.Sprint(i)))
		}
	})
}

func TestFollowerPermissionDeniedThenGranted(t *testing.T) {
	t.Parallel()
	bubble(t, []string{"a", "1"}, func(t *testing.T, b *bubbled) {
		b.synced(false, 50*time.Second)
		require.Equal(t, etcd.PermissionDenied, etcd.Classify(b.Status().Err))
		require.Len(t, warnings(b.followed), 1, "a warning a minute")
		optional := follow(t, b.direct, b.link.Client, func(o *etcd.FollowerOptions) { o.Optional = true })
		b.synced(false, time.Hour)
		require.InDelta(t, 61, len(warnings(b.followed)), 3)
		require.Len(t, optional.log.Lines(api.LogPrefixFailed), 1, "once")
		b.link.Allow("/a/", clientv3.GetPrefixRangeEnd("/a/"))
		b.synced(true, 5*time.Second)
		b.shows("+a=1")
		require.Equal(t, []string{"+a=1"}, optional.shown())
	}, func(b *bubbled) { b.link.Allow("/b/", "/b0") })
}

// A listing alone would be out of date for the freshness.
func TestAWatchThatNeverBeginsIsNotSynced(t *testing.T) {
	t.Parallel()
	bubble(t, []string{"a", "1"}, func(t *testing.T, b *bubbled) {
		for range 4 * int(freshness/time.Second) {
			b.synced(false, time.Second)
		}
		require.True(t, b.Status().Listed)
		require.ErrorIs(t, b.Status().Err, etcd.ErrSilent)
		b.shows("+a=1")
		require.InDelta(t, 4, len(b.listed()), 1, "listed again and again")
	}, func(b *bubbled) {
		b.link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			faults := b.request(req)
			_, faults.HoldRequests = req.(*etcdserverpb.WatchRequest)
			return faults
		})
	})
}

// A prefix that is listed again does not stay synced while the listing hangs.
func TestAListingThatHangsIsNotSynced(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", maxSize+1)
	bubble(t, []string{long, ""}, func(t *testing.T, b *bubbled) {
		require.Equal(t, 1, b.Status().Omitted)
		b.fail(3)
		b.remove(long) // there is room for what was omitted, so it is listed again
		b.synced(true, 5*time.Second)
		b.synced(false, 2*time.Second)
	})
}

func TestFollowerOptionsAreRequired(t *testing.T) {
	t.Parallel()
	_, err := etcd.NewFollower(etcd.FollowerOptions{})
	require.ErrorContains(t, err, "are required")
	_, err = etcd.NewFollower(etcd.FollowerOptions{
		Client: &clientv3.Client{}, Prefix: "/a/", On: func(etcd.Event) {}, Explain: errors.Unwrap, Logger: new(etcdtest.Log).Logger(),
	})
	require.ErrorContains(t, err, "must be positive")
}
