package localetcd

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStartRefusesTwoMembers(t *testing.T) {
	_, err := Start(t.Context(), Options{Members: 2})
	require.EqualError(t, err, "localetcd: members must be 1 or 3, not 2")
}

func TestStartFailsCleanlyWhenTimeIsUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx, Options{UnsafeNoFsync: true})
	require.ErrorIs(t, err, context.Canceled)
}

func TestCloseRemovesTemporaryDirectoryAndMayBeRepeated(t *testing.T) {
	c, err := Start(t.Context(), Options{UnsafeNoFsync: true})
	require.NoError(t, err)
	require.DirExists(t, c.tempDir)
	require.NoError(t, c.Close())
	require.NoDirExists(t, c.tempDir)
	require.NoError(t, c.Close())
}

func TestGivenDirectoryIsKept(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(t.Context(), Options{Dir: dir, UnsafeNoFsync: true})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
}

func TestOptionsReachTheServer(t *testing.T) {
	c, err := Start(t.Context(), Options{QuotaBackendBytes: 1 << 20, MaxTxnOps: 3, AuthTokenTTL: 2 * time.Second, UnsafeNoFsync: true})
	require.NoError(t, err)
	cfg := c.members[0].etcd.Server.Cfg
	require.EqualValues(t, 1<<20, cfg.QuotaBackendBytes)
	require.EqualValues(t, 3, cfg.MaxTxnOps)
	require.EqualValues(t, 2, cfg.TokenTTL)
	require.NoError(t, c.Close())
}
