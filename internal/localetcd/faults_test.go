package localetcd

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestRestartKeepsDataAndAddress(t *testing.T) {
	ctx := testContext(t)
	c := ForTest(t, Options{})
	cli := mustClient(t, c)
	before, err := cli.Put(ctx, "k", "v")
	require.NoError(t, err)
	endpoints := c.Endpoints()

	watch := cli.Watch(ctx, "k") // an open stream must not make Kill wait
	began := time.Now()
	c.Kill(0)
	require.Less(t, time.Since(began), 3*time.Second)
	_, err = net.Dial("tcp", c.Addr(0))
	require.Error(t, err, "the port of a dead member must refuse")

	require.NoError(t, c.Restart(ctx))
	require.Equal(t, endpoints, c.Endpoints())
	after, err := cli.Get(ctx, "k") // the same client reconnects
	require.NoError(t, err)
	require.Equal(t, "v", string(after.Kvs[0].Value))
	require.Equal(t, before.Header.ClusterId, after.Header.ClusterId)
	_, err = cli.Put(ctx, "k", "v2")
	require.NoError(t, err)
	requireEvent(t, watch, "v2")
}

func TestWipeChangesClusterID(t *testing.T) {
	ctx := testContext(t)
	c := ForTest(t, Options{})
	cli := mustClient(t, c)
	before, err := cli.Put(ctx, "k", "v")
	require.NoError(t, err)

	require.ErrorContains(t, c.Wipe(), "kill the member first")
	c.Kill(0)
	require.NoError(t, c.Wipe())
	require.NoError(t, c.Restart(ctx))

	after, err := cli.Get(ctx, "k")
	require.NoError(t, err)
	require.Empty(t, after.Kvs)
	require.NotEqual(t, before.Header.ClusterId, after.Header.ClusterId)
	require.Less(t, after.Header.Revision, before.Header.Revision)
}

func TestRevertGoesBackWithTheSameClusterID(t *testing.T) {
	ctx := testContext(t)
	c := ForTest(t, Options{})
	cli := mustClient(t, c)
	_, err := cli.Put(ctx, "k", "old")
	require.NoError(t, err)
	c.Kill(0)
	require.NoError(t, c.Save())
	require.NoError(t, c.Restart(ctx))
	newer, err := cli.Put(ctx, "k", "new")
	require.NoError(t, err)
	c.Kill(0)
	require.NoError(t, c.Revert())
	require.NoError(t, c.Restart(ctx))

	after, err := cli.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "old", string(after.Kvs[0].Value))
	require.Equal(t, newer.Header.ClusterId, after.Header.ClusterId)
	require.Less(t, after.Header.Revision, newer.Header.Revision)
}

func TestRevertNeedsSave(t *testing.T) {
	c := ForTest(t, Options{})
	c.Kill(0)
	require.ErrorContains(t, c.Revert(), "nothing saved")
}

func TestThreeMembersSurviveTheLossOfOne(t *testing.T) {
	ctx := testContext(t)
	c := ForTest(t, Options{Members: 3})
	require.ErrorContains(t, c.Wipe(), "only a single member can")
	cli := mustClient(t, c)
	leader := leaderIndex(t, ctx, c, cli)

	c.Kill(leader)
	eventuallyPut(t, cli, "a")
	c.Kill((leader + 1) % 3)
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, err := cli.Put(short, "b", "v")
	require.Error(t, err, "one member of three has no quorum")
	require.NoError(t, c.Restart(ctx))
	eventuallyPut(t, cli, "c")
}

// requireEvent reads on to the value: a watch without a start revision replays, after a
// reconnect, the event of the revision at which it was created.
func requireEvent(t *testing.T, watch clientv3.WatchChan, value string) {
	t.Helper()
	for response := range watch {
		for _, e := range response.Events {
			if string(e.Kv.Value) == value {
				return
			}
		}
	}
	require.FailNow(t, "the watch ended without the event", value)
}

func leaderIndex(t *testing.T, ctx context.Context, c *Cluster, cli *clientv3.Client) int {
	t.Helper()
	for i, ep := range c.Endpoints() {
		st, err := cli.Status(ctx, ep)
		require.NoError(t, err)
		if st.Leader == st.Header.MemberId {
			return i
		}
	}
	require.FailNow(t, "no member leads")
	return -1
}

func eventuallyPut(t *testing.T, cli *clientv3.Client, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := cli.Put(ctx, key, "v")
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
}
