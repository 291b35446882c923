package localetcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// proxied returns an etcd, a proxy to it, and a client that is connected through the proxy
// only.
func proxied(t *testing.T) (*etcdtest.Etcd, *localetcd.Proxy, *clientv3.Client) {
	t.Helper()
	c := etcdtest.Start(t, localetcd.Options{})
	p := c.Proxy(0)
	return c, p, c.Connect(func(cfg *clientv3.Config) { cfg.Endpoints = []string{p.Addr()} })
}

func shortPut(t *testing.T, cli *clientv3.Client, key string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := cli.Put(ctx, key, "v")
	return err
}

// The server of another process on the port of a dead member would prevent its restart.
func TestNoPortIsGivenOutTwice(t *testing.T) {
	t.Parallel()
	given := make(map[string]bool)
	for range 400 {
		addr, err := localetcd.FreeAddr()
		require.NoError(t, err)
		require.False(t, given[addr], addr)
		given[addr] = true
	}
}

func TestProxyBlackholeHangsAndHeals(t *testing.T) {
	t.Parallel()
	_, p, through := proxied(t)
	eventuallyPut(t, through, "a")

	p.Blackhole()
	require.ErrorIs(t, shortPut(t, through, "b"), context.DeadlineExceeded)
	require.NoError(t, p.Heal())
	eventuallyPut(t, through, "c")
}

func TestProxyBlackholeAcceptsNewConnections(t *testing.T) {
	t.Parallel()
	_, p, through := proxied(t)
	p.Blackhole()
	require.ErrorIs(t, shortPut(t, through, "a"), context.DeadlineExceeded)
	require.NoError(t, p.Heal())
	eventuallyPut(t, through, "b")
}

func TestProxyHoldRepliesLetsTheWriteHappen(t *testing.T) {
	t.Parallel()
	c, p, through := proxied(t)
	eventuallyPut(t, through, "a")

	p.HoldReplies()
	require.ErrorIs(t, shortPut(t, through, "b"), context.DeadlineExceeded)
	etcdtest.Eventually(t, func() bool {
		r, err := c.Client.Get(t.Context(), "b")
		return err == nil && r.Count == 1
	})
}

func TestProxyTrickleDelaysAnswersOnly(t *testing.T) {
	t.Parallel()
	c, p, through := proxied(t)
	eventuallyPut(t, through, "a")
	p.Trickle()
	require.ErrorIs(t, shortPut(t, through, "b"), context.DeadlineExceeded)
	etcdtest.Eventually(t, func() bool {
		r, err := c.Client.Get(t.Context(), "b")
		return err == nil && r.Count == 1
	})
	require.NoError(t, p.Heal())
	eventuallyPut(t, through, "c")
}

func TestProxyBreakDropsTheDelayedAnswer(t *testing.T) {
	t.Parallel()
	c, p, through := proxied(t)
	eventuallyPut(t, through, "a")

	p.HoldReplies()
	failed := make(chan error)
	go func() {
		_, err := through.Put(t.Context(), "b", "v")
		failed <- err
	}()
	etcdtest.Eventually(t, func() bool {
		r, err := c.Client.Get(t.Context(), "b")
		return err == nil && r.Count == 1
	})
	p.Break()
	require.Error(t, <-failed)
	eventuallyPut(t, through, "c")
}

func TestProxyCutRefusesAndHeals(t *testing.T) {
	t.Parallel()
	_, p, through := proxied(t)
	eventuallyPut(t, through, "a")

	p.Cut()
	require.Error(t, shortPut(t, through, "b"))
	require.NoError(t, p.Heal())
	require.NoError(t, p.Heal(), "healing twice is harmless")
	eventuallyPut(t, through, "c")
}

func TestProxyCloseEndsAnOpenHang(t *testing.T) {
	t.Parallel()
	_, p, through := proxied(t)
	p.Blackhole()
	require.Error(t, shortPut(t, through, "a"))
	// The clean-up closes the proxy. goleak fails the package if a goroutine remains.
}
