package follow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/follow"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) { etcdtest.Main(m, shared.Close) }

const (
	// freshness is longer than a busy machine needs to show something.
	freshness = 5 * time.Second
	maxKeys   = 20
	maxSize   = 100
)

// world is an etcd, and a follower of a prefix of it.
type world struct {
	*etcdtest.Etcd
	*follow.Follower
	t   *testing.T
	log etcdtest.Log

	mu     sync.Mutex
	events []string
	// first are the keys of the first listing.
	first  []string
	values map[string]string
}

// start runs a follower until the test ends.
func start(t *testing.T, e *etcdtest.Etcd, client *clientv3.Client, edits ...func(*follow.Options)) *world {
	t.Helper()
	w := &world{t: t, Etcd: e, values: make(map[string]string)}
	o := follow.Options{
		Client: client, Prefix: e.Prefix, RequestTimeout: 2 * freshness, Freshness: freshness,
		MaxKeys: maxKeys, MaxSize: maxSize, On: w.on, Logger: w.log.Logger(),
		Explain: func(err error) error { return err },
	}
	for _, edit := range edits {
		edit(&o)
	}
	follower, err := follow.New(o)
	require.NoError(t, err)
	w.Follower = follower
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(etcdtest.Soon):
			require.Fail(t, "still running after its end")
		}
	})
	return w
}

func (w *world) on(e follow.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Deleted {
		w.events = append(w.events, "-"+e.Key)
		delete(w.values, e.Key)
		return
	}
	w.events = append(w.events, fmt.Sprintf("+%s=%.20s", e.Key, e.Value))
	if e.First {
		w.first = append(w.first, e.Key)
	}
	w.values[e.Key] = string(e.Value)
}

func (w *world) shown() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.events...)
}

func (w *world) value(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

func (w *world) put(pairs ...string) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		w.Put(clientv3.OpPut(w.Prefix+pairs[i], pairs[i+1]))
	}
}

func (w *world) remove(keys ...string) {
	w.t.Helper()
	for _, key := range keys {
		_, err := w.Client.Delete(w.t.Context(), w.Prefix+key)
		require.NoError(w.t, err)
	}
}

func (w *world) inView(want bool) {
	w.t.Helper()
	etcdtest.Eventually(w.t, func() bool { return w.Status().InView == want }, "in view: ", want)
}

func (w *world) shows(want ...string) {
	w.t.Helper()
	etcdtest.Eventually(w.t, func() bool { return len(w.shown()) >= len(want) }, "events")
	require.Equal(w.t, want, w.shown())
}

func TestFollow(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	e.Put(clientv3.OpPut(e.Prefix+"a", "1"), clientv3.OpPut(e.Prefix+"b/c", "2"))
	w := start(t, e, e.Client)
	w.inView(true)
	w.shows("+a=1", "+b/c=2")
	lease, err := e.Client.Grant(t.Context(), 60)
	require.NoError(t, err)
	_, err = e.Client.Put(t.Context(), e.Prefix+"d", strings.Repeat("x", maxSize+1), clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	w.put("a", "3", "a", "3")
	w.remove("b/c", "a")
	_, err = e.Client.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	w.shows("+a=1", "+b/c=2", "+d="+strings.Repeat("x", 20), "+a=3", "+a=3", "-b/c", "-a", "-d")
	require.Equal(t, follow.Status{InView: true, Listed: true}, w.Status())
}

func TestSizeIsLimited(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	long := strings.Repeat("k", maxSize)
	e.Put(clientv3.OpPut(e.Prefix+long, strings.Repeat("x", maxSize)), clientv3.OpPut(e.Prefix+"cut", strings.Repeat("x", maxSize+1)))
	w := start(t, e, e.Client)
	w.inView(true)
	require.Equal(t, strings.Repeat("x", maxSize), w.value(long))
	require.Equal(t, strings.Repeat("x", maxSize), w.value("cut"))
	require.False(t, w.Status().Omitted)
	w.put(long+"k", "")
	etcdtest.Eventually(t, func() bool { return w.Status().Omitted })
	require.Len(t, w.shown(), 2)
	w.remove(long + "k")
	etcdtest.Eventually(t, func() bool { return !w.Status().Omitted && w.Status().InView })
}

func TestNumberIsLimited(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	var puts []clientv3.Op
	for i := range maxKeys {
		puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%03d", e.Prefix, i), ""))
	}
	e.Put(puts...)
	w := start(t, e, e.Client)
	w.inView(true)
	require.Len(t, w.shown(), maxKeys)
	require.False(t, w.Status().Omitted, "exactly as many as there may be")
	w.put("more", "1")
	etcdtest.Eventually(t, func() bool { return w.Status().Omitted })
	require.Len(t, w.log.Lines(api.LogKeysOmitted), 1)
	require.Len(t, w.shown(), maxKeys)

	late := start(t, e, e.Client)
	late.inView(true)
	require.True(t, late.Status().Omitted)
	require.Len(t, late.shown(), maxKeys)
	w.remove("000")
	for _, w := range []*world{w, late} {
		etcdtest.Eventually(t, func() bool { return w.value("more") != "" && !w.Status().Omitted }, "there is room again")
	}
}

// listings counts the listings of a follower, and makes one fail.
type listings struct {
	mu    sync.Mutex
	from  string
	at    []time.Time
	fails bool
}

func (l *listings) dial(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if r, ok := req.(*etcdserverpb.RangeRequest); ok && string(r.Key) == l.from && l.listed() {
			return errors.New("not this time")
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}))
}

func (l *listings) listed() (fails bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fails, l.fails, l.at = l.fails, false, append(l.at, time.Now())
	return fails
}

func (l *listings) times() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]time.Time(nil), l.at...)
}

// While keys are omitted, each deletion makes room for one of them: that is not a listing each.
func TestDeletionsWhileKeysAreOmittedListOnce(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	const n = 500
	var puts []clientv3.Op
	for i := range n {
		puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%03d", e.Prefix, i), "x"))
	}
	e.Put(puts...)
	l := &listings{from: e.Prefix}
	w := start(t, e, e.Connect(l.dial))
	w.inView(true)
	require.True(t, w.Status().Omitted)
	began := time.Now()
	for i := range n - maxKeys/2 {
		w.remove(fmt.Sprintf("%03d", i))
		w.put("last", fmt.Sprint(i)) // no room for it, but the watch goes on
	}
	took := time.Since(began)
	w.remove("last")
	etcdtest.Eventually(t, func() bool { return !w.Status().Omitted && w.value("499") != "" }, "all that is left is shown")
	require.LessOrEqual(t, len(l.times()), 3+int(took/time.Second))
	require.Empty(t, w.log.Lines(api.LogNotInView))
}

// Only failures make the pause after a failure longer, not the listings after a watch was resumed.
func TestResumedWatchesDoNotDelayTheListingAfterAFailure(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	p := e.Proxy(0)
	l := &listings{from: e.Prefix}
	w := start(t, e, e.Connect(l.dial, func(c *clientv3.Config) { c.Endpoints = []string{p.Addr()} }), func(o *follow.Options) { o.Freshness = etcdtest.Soon })
	w.inView(true)
	for range 7 {
		n := len(l.times())
		p.Cut()
		require.NoError(t, p.Heal())
		etcdtest.Eventually(t, func() bool { return len(l.times()) > n }, "listed again")
		require.True(t, w.Status().InView)
		w.put("n", fmt.Sprint(n)) // a cut before the watch is open would be no failure of it
		etcdtest.Eventually(t, func() bool { return w.value("n") == fmt.Sprint(n) }, "watches again")
	}
	l.mu.Lock()
	n := len(l.at)
	l.fails = true
	l.mu.Unlock()
	p.Cut()
	require.NoError(t, p.Heal())
	etcdtest.Eventually(t, func() bool { return len(l.times()) >= n+2 }, "listed after the failure")
	at := l.times()
	require.Less(t, at[n+1].Sub(at[n]), 2*time.Second, "after seven failures it would be 2.5 s or more")
}

// What was written while the connection was cut is shown after it, and nothing twice.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	p := e.Proxy(0)
	e.Put(clientv3.OpPut(e.Prefix+"a", "1"), clientv3.OpPut(e.Prefix+"b", "1"), clientv3.OpPut(e.Prefix+"c", "1"))
	w := start(t, e, through(e, p))
	w.inView(true)
	p.Cut()
	w.inView(false)
	w.remove("a")
	w.put("b", "2", "d", "1", "d", "2")
	resp, err := e.Client.Get(t.Context(), e.Prefix)
	require.NoError(t, err)
	_, err = e.Client.Compact(t.Context(), resp.Header.Revision)
	require.NoError(t, err)
	require.NoError(t, p.Heal())
	w.inView(true)
	require.Equal(t, []string{"+a=1", "+b=1", "+c=1", "+b=2", "+d=2", "-a"}, w.shown())
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, []string{"a", "b", "c"}, w.first)
	require.NotEmpty(t, w.log.Lines(api.LogNotInView))
}

func through(e *etcdtest.Etcd, p *localetcd.Proxy) *clientv3.Client {
	return e.Connect(func(c *clientv3.Config) { c.Endpoints = []string{p.Addr()} })
}

func TestSilence(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	p := e.Proxy(0)
	w := start(t, e, through(e, p))
	w.inView(true)
	began := time.Now()
	p.Blackhole()
	w.inView(false)
	require.Less(t, time.Since(began), 5*freshness)
	w.put("a", "1")
	require.NoError(t, p.Heal())
	w.inView(true)
	w.shows("+a=1")
}

func TestIdleStaysInView(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	w := start(t, e, e.Client, func(o *follow.Options) { o.Freshness = 8 * time.Second })
	w.inView(true)
	began := time.Now()
	etcdtest.Eventually(t, func() bool {
		require.True(t, w.Status().InView)
		return time.Since(began) > w.Freshness*3/2
	})
	require.Empty(t, w.log.Lines(api.LogNotInView))
}

func TestNoLeader(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{Members: 3})
	w := start(t, e, e.Client)
	w.inView(true)
	e.Kill(1)
	e.Kill(2)
	w.inView(false)
	require.NoError(t, e.Restart(t.Context()))
	w.inView(true)
	w.put("a", "1")
	w.shows("+a=1")
}

// A restored etcd has fewer keys and an older revision.
func TestRestored(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Put(clientv3.OpPut(e.Prefix+"old", "1"))
	e.Kill(0)
	require.NoError(t, e.Save())
	require.NoError(t, e.Restart(t.Context()))
	w := start(t, e, e.Client)
	w.inView(true)
	w.put("new", "1", "new", "2")
	w.shows("+old=1", "+new=1", "+new=2")
	e.Kill(0)
	w.inView(false)
	require.NoError(t, e.Revert())
	require.NoError(t, e.Restart(t.Context()))
	w.inView(true)
	w.shows("+old=1", "+new=1", "+new=2", "-new")
	w.put("new", "3")
	w.shows("+old=1", "+new=1", "+new=2", "-new", "+new=3")
}

// The client library resumes the watch of a restored etcd that others have written past.
func TestRestoredUnnoticed(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	p := e.Proxy(0)
	e.Put(clientv3.OpPut(e.Prefix+"old", "1"))
	e.Kill(0)
	require.NoError(t, e.Save())
	require.NoError(t, e.Restart(t.Context()))
	w := start(t, e, through(e, p), func(o *follow.Options) { o.Freshness = etcdtest.Soon })
	w.inView(true)
	w.put("new", "1")
	w.shows("+old=1", "+new=1")
	p.Cut()
	e.Kill(0)
	require.NoError(t, e.Revert())
	require.NoError(t, e.Restart(t.Context()))
	for range 10 {
		e.Put(clientv3.OpPut("/elsewhere", ""))
	}
	require.NoError(t, p.Heal())
	w.shows("+old=1", "+new=1", "-new")
	require.True(t, w.Status().InView)
	require.Empty(t, w.log.Lines(api.LogNotInView))
}

func TestOptionsAreRequired(t *testing.T) {
	_, err := follow.New(follow.Options{})
	require.ErrorContains(t, err, "are required")
	_, err = follow.New(follow.Options{
		Client: &clientv3.Client{}, Prefix: "/a/", On: func(follow.Event) {}, Explain: errors.Unwrap, Logger: new(etcdtest.Log).Logger(),
	})
	require.ErrorContains(t, err, "must be positive")
}
