// Package mutex holds the public client to a real etcd and to the daemon. Its module links none of
// them, and has its own tests on the etcd in memory.
package mutex_test

import (
	"context"
	"log"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) {
	if endpoint := os.Getenv("MUTEX_TEST_ENDPOINT"); endpoint != "" {
		if err := helper(endpoint); err != nil {
			log.Fatal(err)
		}
		return
	}
	etcdtest.Main(m, shared.Close)
}

func seconds(t *testing.T, v string) time.Time {
	t.Helper()
	f, err := strconv.ParseFloat(v, 64)
	require.NoError(t, err)
	return time.UnixMicro(int64(f * 1e6))
}

func done(t *testing.T, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * etcdtest.Soon):
		require.FailNow(t, "the context did not end")
	}
	return context.Cause(ctx)
}
