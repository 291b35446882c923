//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClientOnOlderReleases runs the tests of the Go client, and those that hold the etcd in memory to
// a real one, on the older releases. Those of the root module run them on the newest.
func TestClientOnOlderReleases(t *testing.T) {
	t.Parallel()
	for _, version := range versions[:len(versions)-1] {
		t.Run(version, func(t *testing.T) {
			etcd := startEtcd(t, version)
			for _, args := range [][]string{
				{"github.com/etcd-unlocker/unlocker/mutex"},
				{"-run", "TestSuite|TestRandom", "github.com/etcd-unlocker/unlocker/internal/etcdtest/memetcd", "-rapid.seed=1"},
			} {
				cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-count=1"}, args...)...)
				cmd.Env = append(os.Environ(), "MUTEX_TEST_ETCD=http://"+etcd.addr, "MEMETCD_TEST_ETCD=http://"+etcd.addr)
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, string(out))
			}
		})
	}
}
