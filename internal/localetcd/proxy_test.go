package localetcd

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func proxied(t *testing.T) (*Proxy, *clientv3.Client, *clientv3.Client) {
	t.Helper()
	c := ForTest(t, Options{})
	p, err := NewProxy(c.Addr(0))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	through := mustClient(t, c, func(cfg *clientv3.Config) { cfg.Endpoints = []string{p.Addr()} })
	return p, through, mustClient(t, c)
}

func shortPut(t *testing.T, cli *clientv3.Client, key string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := cli.Put(ctx, key, "v")
	return err
}

func TestProxyBlackholeHangsAndHeals(t *testing.T) {
	ctx := testContext(t)
	p, through, _ := proxied(t)
	_, err := through.Put(ctx, "a", "v")
	require.NoError(t, err)

	p.Blackhole()
	require.ErrorIs(t, shortPut(t, through, "b"), context.DeadlineExceeded)
	require.NoError(t, p.Heal())
	eventuallyPut(t, through, "c")
}

func TestProxyBlackholeAcceptsNewConnections(t *testing.T) {
	p, through, _ := proxied(t) // the client connects at its first call
	p.Blackhole()
	require.ErrorIs(t, shortPut(t, through, "a"), context.DeadlineExceeded)
	require.NoError(t, p.Heal())
	eventuallyPut(t, through, "b")
}

func TestProxyHoldRepliesLetsTheWriteHappen(t *testing.T) {
	ctx := testContext(t)
	p, through, direct := proxied(t)
	_, err := through.Put(ctx, "a", "v")
	require.NoError(t, err)

	p.HoldReplies()
	require.ErrorIs(t, shortPut(t, through, "b"), context.DeadlineExceeded)
	require.Eventually(t, func() bool {
		r, err := direct.Get(ctx, "b")
		return err == nil && r.Count == 1
	}, 5*time.Second, 20*time.Millisecond)
}

func TestProxyCutRefusesAndHeals(t *testing.T) {
	ctx := testContext(t)
	p, through, _ := proxied(t)
	_, err := through.Put(ctx, "a", "v")
	require.NoError(t, err)

	p.Cut()
	require.Error(t, shortPut(t, through, "b"))
	require.NoError(t, p.Heal())
	require.NoError(t, p.Heal(), "healing twice is harmless")
	eventuallyPut(t, through, "c")
}

func TestProxyCloseEndsAnOpenHang(t *testing.T) {
	c := ForTest(t, Options{})
	p, err := NewProxy(c.Addr(0))
	require.NoError(t, err)
	cli := mustClient(t, c, func(cfg *clientv3.Config) { cfg.Endpoints = []string{p.Addr()} })
	p.Blackhole()
	require.Error(t, shortPut(t, cli, "a"))
	p.Close() // goleak fails the package when a goroutine stays
}
