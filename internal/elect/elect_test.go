package elect

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestNewRefuses(t *testing.T) {
	for name, edit := range map[string]func(*Options){
		"no client":       func(o *Options) { o.Client = nil },
		"no logger":       func(o *Options) { o.Logger = nil },
		"no key":          func(o *Options) { o.Key = "" },
		"slash as a key":  func(o *Options) { o.Key = "/" },
		"no identity":     func(o *Options) { o.Identity = "" },
		"short ttl":       func(o *Options) { o.TTL = time.Second },
		"broken ttl":      func(o *Options) { o.TTL = 2500 * time.Millisecond },
		"request timeout": func(o *Options) { o.RequestTimeout = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(&clientv3.Client{}, "a", quick)
			edit(&o)
			_, err := New(o)
			require.ErrorContains(t, err, "elect: ")
		})
	}
}

func TestKeyWithOrWithoutSlash(t *testing.T) {
	for _, k := range []string{"/unlocker/leader/mutexes", "/unlocker/leader/mutexes/"} {
		o := options(&clientv3.Client{}, "a", quick)
		o.Key = k
		e, err := New(o)
		require.NoError(t, err)
		require.Equal(t, "/unlocker/leader/mutexes/", e.prefix)
	}
}

func TestStatic(t *testing.T) {
	require.True(t, Static(true).Leader())
	require.False(t, Static(false).Leader())
}

// A process that hung notices by its clock, before any goroutine of it has run.
func TestLeaderIsComputedFromTime(t *testing.T) {
	e, err := New(options(&clientv3.Client{}, "a", slow))
	require.NoError(t, err)
	require.False(t, e.Leader())
	ctx, cancel := context.WithCancel(t.Context())
	reign := &term{Elector: e, ctx: ctx}
	e.reigning.Store(reign)
	for _, c := range []struct {
		ago    time.Duration
		leader bool
	}{{0, true}, {slow * 8 / 10, true}, {slow*9/10 + time.Second/10, false}, {slow, false}, {time.Hour, false}} {
		sent := time.Now().Add(-c.ago)
		reign.confirmed.Store(&sent)
		require.Equal(t, c.leader, e.Leader(), c.ago)
		require.Equal(t, c.leader, e.Status().Leader, c.ago)
	}
	now := time.Now()
	reign.confirmed.Store(&now)
	require.True(t, e.Leader())
	cancel()
	require.False(t, e.Leader(), "the term's context is done")
}

// frozen is an etcd that holds the given keys.
type frozen struct {
	clientv3.KV
	kvs []*mvccpb.KeyValue
}

func (f *frozen) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return &clientv3.GetResponse{Kvs: f.kvs}, nil
}

func TestLook(t *testing.T) {
	kv := func(name string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key + "/" + name), Value: []byte(name), CreateRevision: rev}
	}
	for name, c := range map[string]struct {
		line    []*mvccpb.KeyValue
		reigned bool
		err     error
		leads   bool
	}{
		"alone":                          {line: []*mvccpb.KeyValue{kv("own", 7)}, leads: true},
		"still alone":                    {line: []*mvccpb.KeyValue{kv("own", 7)}, reigned: true, leads: true},
		"behind another":                 {line: []*mvccpb.KeyValue{kv("x", 3), kv("own", 7)}},
		"behind another's inner key":     {line: []*mvccpb.KeyValue{kv("x/y", 3), kv("own", 7)}, leads: true},
		"gone":                           {err: errDeposed},
		"gone, another there":            {line: []*mvccpb.KeyValue{kv("x", 3)}, err: errDeposed},
		"of another create revision":     {line: []*mvccpb.KeyValue{kv("own", 5)}, err: errDeposed},
		"led, and then an older appears": {line: []*mvccpb.KeyValue{kv("x", 3), kv("own", 7)}, reigned: true, err: errDeposed},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := New(options(&clientv3.Client{KV: &frozen{kvs: c.line}}, "own", slow))
			require.NoError(t, err)
			now := time.Now()
			own := &term{Elector: e, ctx: t.Context(), key: key + "/own", rev: 7}
			own.confirmed.Store(&now)
			if c.reigned {
				e.reign(own)
			}
			require.ErrorIs(t, own.look(t.Context()), c.err)
			if c.err == nil {
				require.Equal(t, c.leads, e.Leader())
			}
		})
	}
}

func TestBackoffGrowsAndStartsAnewAfterAHealthyTerm(t *testing.T) {
	require.Equal(t, minBackoff, grown(0, 0, slow))
	require.Equal(t, 2*minBackoff, grown(minBackoff, slow, slow))
	require.Equal(t, maxBackoff, grown(maxBackoff, 0, slow))
	require.Equal(t, minBackoff, grown(maxBackoff, slow+1, slow))
}

func TestOneWarningAMinuteForEachReason(t *testing.T) {
	c, now := complaints{}, time.Now()
	require.True(t, c.due("a", now))
	require.False(t, c.due("a", now.Add(59*time.Second)))
	require.True(t, c.due("b", now.Add(59*time.Second)))
	require.True(t, c.due("a", now.Add(60*time.Second)))
	require.False(t, c.due("a", now.Add(61*time.Second)))
}

func TestReasons(t *testing.T) {
	for want, err := range map[string]error{
		errUnseen.Error():   fmt.Errorf("%w: %w", errUnseen, context.DeadlineExceeded),
		"ResourceExhausted": fmt.Errorf("grant: %w", rpctypes.ErrNoSpace),
		"PermissionDenied":  rpctypes.ErrGRPCPermissionDenied,
		"DeadlineExceeded":  fmt.Errorf("grant: %w", context.DeadlineExceeded),
		"Unknown":           errors.New("?"),
	} {
		require.Equal(t, want, reasonOf(err))
	}
}

func TestOneOfThreeLeadsAndAGracefulStopHandsOver(t *testing.T) {
	w := newWorld(t, localetcd.Options{Members: 3})
	var all []*replica
	for i := range 3 {
		all = append(all, w.run(newClient(t, w.cluster.Addr(i)), fmt.Sprint("r", i), slow))
	}
	for len(all) > 0 {
		leaders := func() (n int) {
			for _, r := range all {
				if r.Leader() {
					n++
				}
			}
			return n
		}
		took := w.eventually("one leads", func() bool { return leaders() == 1 })
		t.Logf("%d left: a leader after %s", len(all), took)
		require.Less(t, took, 1500*time.Millisecond)
		w.throughout(200*time.Millisecond, "and no other", func() bool { return leaders() == 1 })
		var rest []*replica
		var leader *replica
		for _, r := range all {
			if r.Leader() {
				leader = r
			} else {
				rest = append(rest, r)
			}
		}
		for _, r := range all {
			w.eventually("all know the leader", func() bool { return r.Status().Holder == leader.Identity })
			require.Equal(t, r == leader, r.Status().Leader)
			require.Equal(t, r != leader, r.Status().Since.IsZero())
		}
		leader.stop(t)
		require.Empty(t, w.keyOf(leader))
		require.Equal(t, Status{}, leader.Status())
		all = rest
	}
}

// etcd's own election and ours are one.
func TestTogetherWithEtcdsElection(t *testing.T) {
	w := newWorld(t, localetcd.Options{})
	session, err := concurrency.NewSession(w.direct)
	require.NoError(t, err)
	theirs := concurrency.NewElection(session, key)
	require.NoError(t, theirs.Campaign(w.ctx(), "etcdctl"))
	ours := w.run(newClient(t, w.cluster.Addr(0)), "ours", slow)
	w.waits(ours)
	w.eventually("their leader is seen", func() bool { return ours.Status().Holder == "etcdctl" })
	require.False(t, ours.Leader())
	require.NoError(t, theirs.Resign(w.ctx()))
	require.Less(t, w.leads(ours), time.Second)

	won := make(chan error, 1)
	go func() { won <- theirs.Campaign(w.ctx(), "etcdctl") }()
	w.eventually("they stand in line", func() bool {
		resp, err := w.direct.Get(w.ctx(), ours.prefix, clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 2
	})
	require.Empty(t, won)
	ours.stop(t)
	require.NoError(t, <-won)
	require.NoError(t, session.Close())
}

// The election of /mutexes/a/ must not stand in the line of /mutexes/.
func TestElectionsWithNestedNamesDoNotMeet(t *testing.T) {
	w := newWorld(t, localetcd.Options{})
	inner := w.run(newClient(t, w.cluster.Addr(0)), "inner", slow, func(o *Options) { o.Key += "/a/" })
	w.leads(inner)
	outer := w.run(newClient(t, w.cluster.Addr(0)), "outer", slow)
	w.leads(outer)
	require.True(t, inner.Leader())
}
