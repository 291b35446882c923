//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClientOnReleases runs the tests of the Go client on a real etcd, and on the older releases those
// that hold the etcd in memory to a real one. make test runs these on the newest.
func TestClientOnReleases(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			etcd := startEtcd(t, version)
			suites := [][]string{{"-run", "TestMemoryIsAsEtcd", "github.com/etcd-unlocker/unlocker/internal/sim", "-rapid.seed=1"}}
			if slices.Contains(supported(), version) {
				suites = append(suites, []string{"github.com/etcd-unlocker/unlocker/mutex"})
			}
			for _, args := range suites {
				cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-count=1"}, args...)...)
				cmd.Env = append(os.Environ(), "MUTEX_TEST_ETCD=http://"+etcd.addr, "MEMETCD_TEST_ETCD=http://"+etcd.addr)
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, string(out))
			}
		})
	}
}
