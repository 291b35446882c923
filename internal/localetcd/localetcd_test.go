package localetcd

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustClient(t *testing.T, c *Cluster, edits ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cli, err := c.Client(edits...)
	require.NoError(t, err)
	return cli
}

func TestStartRefusesTwoMembers(t *testing.T) {
	_, err := Start(testContext(t), Options{Members: 2})
	require.EqualError(t, err, "localetcd: members must be 1 or 3, not 2")
}

func TestStartFailsCleanlyWhenTimeIsUp(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	_, err := Start(ctx, Options{UnsafeNoFsync: true})
	require.ErrorIs(t, err, context.Canceled)
}

func TestCloseRemovesTemporaryDirectoryAndMayBeRepeated(t *testing.T) {
	c, err := Start(testContext(t), Options{UnsafeNoFsync: true})
	require.NoError(t, err)
	require.DirExists(t, c.tempDir)
	require.NoError(t, c.Close())
	require.NoDirExists(t, c.tempDir)
	require.NoError(t, c.Close())
}

func TestGivenDirectoryIsKept(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(testContext(t), Options{Dir: dir, UnsafeNoFsync: true})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
}

func TestOptionsReachTheServer(t *testing.T) {
	c := ForTest(t, Options{
		QuotaBackendBytes: 1 << 20, MaxTxnOps: 3, MaxRequestBytes: 4096, AuthTokenTTL: 2 * time.Second,
		ProgressInterval: time.Second, Tick: 20 * time.Millisecond, Election: 200 * time.Millisecond,
	})
	cfg := c.members[0].etcd.Server.Cfg
	require.EqualValues(t, 1<<20, cfg.QuotaBackendBytes)
	require.EqualValues(t, 3, cfg.MaxTxnOps)
	require.EqualValues(t, 4096, cfg.MaxRequestBytes)
	require.EqualValues(t, 2, cfg.TokenTTL)
	require.Equal(t, time.Second, cfg.WatchProgressNotifyInterval)
	require.EqualValues(t, 20, cfg.TickMs)
	require.Equal(t, 10, cfg.ElectionTicks)
}
