package elect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Options){
		"no client":       func(o *Options) { o.Client = nil },
		"no logger":       func(o *Options) { o.Logger = nil },
		"no key":          func(o *Options) { o.Key = "" },
		"slash as a key":  func(o *Options) { o.Key = "/" },
		"no identity":     func(o *Options) { o.Identity = "" },
		"no ttl":          func(o *Options) { o.TTL = 0 },
		"request timeout": func(o *Options) { o.RequestTimeout = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(&clientv3.Client{}, "a", slow)
			edit(&o)
			_, err := New(o)
			require.ErrorContains(t, err, "elect: ")
		})
	}
}

func TestOneWarningAMinuteForEachReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &etcdtest.Log{}
		o := options(&clientv3.Client{}, "a", slow)
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
		e, err := New(o)
		require.NoError(t, err)
		for i := range 61 {
			e.report(t.Context(), fmt.Errorf("grant lease: %w", rpctypes.ErrNoSpace))
			e.report(t.Context(), rpctypes.ErrGRPCPermissionDenied)
			e.report(t.Context(), fmt.Errorf("grant lease: %w", context.DeadlineExceeded))
			e.report(t.Context(), errors.New("?"))
			for _, reason := range []etcd.Reason{etcd.NoSpace, etcd.PermissionDenied, etcd.Timeout, etcd.Other} {
				require.Equal(t, 1+i/60, count(log, "reason="+string(reason)))
			}
			<-time.After(time.Second)
		}
	})
}

func TestOneOfThreeLeadsAndAGracefulStopHandsOver(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		var all []*replica
		for i := range 3 {
			all = append(all, w.run(w.client(), fmt.Sprint("r", i), ttl))
		}
		for len(all) > 0 {
			require.Less(t, w.eventually("one leads", func() bool { return slices.ContainsFunc(all, (*replica).Leader) }), time.Second)
			i := slices.IndexFunc(all, (*replica).Leader)
			leader := all[i]
			for _, r := range all {
				require.LessOrEqual(t, w.eventually("all know the leader", func() bool { return r.Status().Holder == leader.Identity }), ttl/3+poll)
				require.Equal(t, r == leader, r.Status().Leader)
			}
			leader.stop(t)
			require.Nil(t, w.keyOf(leader))
			all = slices.Delete(all, i, i+1)
		}
	})
}

func TestLeadershipIsKnownBeforeTheRepeatedRead(t *testing.T) {
	t.Parallel()
	bubble(t, func(_ *testing.T, w *world) {
		require.Less(t, w.leads(w.run(w.client(), "a", time.Hour)), time.Second)
	})
}

// The keys are the same as those of the client library and of etcdctl elect, whether or not the
// configured key ends with a slash.
func TestTogetherWithEtcdsElection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	session, err := concurrency.NewSession(w.direct)
	require.NoError(t, err)
	theirs := concurrency.NewElection(session, key)
	require.NoError(t, theirs.Campaign(w.ctx(), "etcdctl"))
	ours := w.run(w.client(), "ours", slow, func(o *Options) { o.Key += "/" })
	w.eventually("their leader is known", func() bool { return ours.Status().Holder == "etcdctl" })
	require.False(t, ours.Leader())
	require.NoError(t, theirs.Resign(w.ctx()))
	w.leads(ours)

	won := make(chan error, 1)
	go func() { won <- theirs.Campaign(w.ctx(), "etcdctl") }()
	w.eventually("they have a key", func() bool {
		resp, err := w.direct.Get(w.ctx(), key+"/", clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 2
	})
	require.Empty(t, won)
	ours.stop(t)
	require.NoError(t, <-won)
	require.NoError(t, session.Close())
}
