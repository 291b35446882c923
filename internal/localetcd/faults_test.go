package localetcd_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

func TestRestartKeepsDataAndAddress(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, localetcd.Options{})
	before, err := c.Client.Put(t.Context(), "k", "v")
	require.NoError(t, err)
	endpoints := c.Endpoints()

	watch := c.Client.Watch(t.Context(), "k") // Kill must not wait for an open stream
	began := time.Now()
	c.Kill(0)
	require.Less(t, time.Since(began), 5*time.Second, "a graceful stop waits longer for the stream")
	_, err = net.Dial("tcp", c.Addr(0))
	require.Error(t, err, "the port of a dead member must refuse")

	require.NoError(t, c.Restart(t.Context()))
	require.Equal(t, endpoints, c.Endpoints())
	after, err := c.Client.Get(t.Context(), "k") // the same client reconnects
	require.NoError(t, err)
	require.Equal(t, "v", string(after.Kvs[0].Value))
	require.Equal(t, before.Header.ClusterId, after.Header.ClusterId)
	_, err = c.Client.Put(t.Context(), "k", "v2")
	require.NoError(t, err)
	requireEvent(t, watch, "v2")
}

func TestWipeChangesClusterID(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, localetcd.Options{})
	before, err := c.Client.Put(t.Context(), "k", "v")
	require.NoError(t, err)

	require.ErrorContains(t, c.Wipe(), "kill the member first")
	c.Kill(0)
	require.NoError(t, c.Wipe())
	require.NoError(t, c.Restart(t.Context()))

	after, err := c.Client.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Empty(t, after.Kvs)
	require.NotEqual(t, before.Header.ClusterId, after.Header.ClusterId)
	require.Less(t, after.Header.Revision, before.Header.Revision)
}

func TestRevertKeepsTheClusterID(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, localetcd.Options{})
	_, err := c.Client.Put(t.Context(), "k", "old")
	require.NoError(t, err)
	c.Kill(0)
	require.NoError(t, c.Save())
	require.NoError(t, c.Restart(t.Context()))
	newer, err := c.Client.Put(t.Context(), "k", "new")
	require.NoError(t, err)
	c.Kill(0)
	require.NoError(t, c.Revert())
	require.NoError(t, c.Restart(t.Context()))

	after, err := c.Client.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "old", string(after.Kvs[0].Value))
	require.Equal(t, newer.Header.ClusterId, after.Header.ClusterId)
	require.Less(t, after.Header.Revision, newer.Header.Revision)
}

func TestRevertNeedsSave(t *testing.T) {
	c := etcdtest.Start(t, localetcd.Options{})
	c.Kill(0)
	require.ErrorContains(t, c.Revert(), "nothing to revert")
}

func TestThreeMembersSurviveTheLossOfOne(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, localetcd.Options{Members: 3})
	require.ErrorContains(t, c.Wipe(), "only a single member can")
	leader := leaderIndex(t, c)

	c.Kill(leader)
	eventuallyPut(t, c.Client, "a")
	c.Kill((leader + 1) % 3)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := c.Client.Put(ctx, "b", "v")
	require.Error(t, err, "one member of three has no quorum")
	require.NoError(t, c.Restart(t.Context()))
	eventuallyPut(t, c.Client, "c")
}

// requireEvent reads events until the one with the value. After a reconnect, a watch without
// a start revision repeats the event of the revision at which it was created.
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

// leaderIndex waits until a member says that it leads: the members are asked one by one, and
// another may be elected meanwhile.
func leaderIndex(t *testing.T, c *etcdtest.Etcd) (leader int) {
	t.Helper()
	etcdtest.Eventually(t, func() bool {
		leader = slices.IndexFunc(c.Endpoints(), func(endpoint string) bool {
			st, err := c.Client.Status(t.Context(), endpoint)
			require.NoError(t, err)
			return st.Leader == st.Header.MemberId
		})
		return leader >= 0
	}, "a member leads")
	return leader
}

func eventuallyPut(t *testing.T, cli *clientv3.Client, key string) {
	t.Helper()
	etcdtest.Eventually(t, func() bool { return shortPut(t, cli, key) == nil })
}

// A process that is being started has a copy of the listener for a moment, after the member has closed its own.
func TestRestartWaitsForTheListenerOfBefore(t *testing.T) {
	t.Parallel()
	c, err := localetcd.Start(t.Context(), localetcd.Options{UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.Kill(0)
	copied, err := net.Listen("tcp", c.Addr(0))
	require.NoError(t, err)
	closed := time.AfterFunc(300*time.Millisecond, func() { _ = copied.Close() })
	defer closed.Stop()
	require.NoError(t, c.Restart(t.Context()))
}
