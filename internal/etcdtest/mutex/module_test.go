package mutex_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModule runs the tests of the module on a real etcd, and with the client of this module.
func TestModule(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "github.com/etcd-unlocker/unlocker/mutex")
	cmd.Env = append(os.Environ(), "MUTEX_TEST_ETCD="+shared.Start(t).Endpoints()[0])
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
