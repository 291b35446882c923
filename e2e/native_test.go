//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// The locks and elections of etcdctl, on each version of etcd, for a user who may only read them.
func TestNativeLocksOfEtcdctl(t *testing.T) {
	t.Parallel()
	for _, version := range supported() {
		t.Run(version, func(t *testing.T) {
			l := startLockedEtcd(t, version)
			for _, block := range []string{"role", "certificate", "enable"} {
				l.execute(commands(t, block)...)
			}
			const grant = "etcdctl role grant-permission unlocker read --prefix "
			l.execute(grant+"/locks/", grant+"/elections/")
			cert, key := l.issue(t, "root")
			etcdctl := func(args ...string) *process {
				return start(t, l.etcdctl, append([]string{"--endpoints", "https://" + l.addr, "--cacert", l.ca, "--cert", cert, "--key", key, "--dial-timeout", "1m"}, args...)...)
			}
			flags := append(append(l.flags("certificate"), patient...), "--native-prefixes", "/locks/,/elections/")
			d := startDaemon(t, l.addr, flags...)
			holder := etcdctl("lock", "/locks/deploy", "--ttl", "30")
			d.awaitMetric(1, "unlocker_native_locks", "prefix", "/locks/")
			etcdctl("lock", "/locks/deploy")
			etcdctl("elect", "/elections/leader", "host-1")
			d.awaitMetric(1, "unlocker_native_locks", "prefix", "/elections/")

			list := func() (prefixes []api.NativePrefix) {
				args := append([]string{"list", "--native", "--etcd-endpoints", l.addr, "-o", "json"}, flags...)
				out, err := exec.CommandContext(t.Context(), unlocker, args...).Output()
				require.NoError(t, err, string(out))
				var decoded api.NativeList
				require.NoError(t, json.Unmarshal(out, &decoded), string(out))
				require.Len(t, decoded.Prefixes, 2)
				return decoded.Prefixes
			}
			var prefixes []api.NativePrefix
			require.Eventually(t, func() bool {
				prefixes = list()
				return prefixes[0].Waiting == 1
			}, soon, poll)
			deploy, leader := prefixes[0].Holders[0], prefixes[1].Holders[0]
			require.Equal(t, "/locks/deploy", deploy.Name)
			require.Equal(t, "/locks/deploy/"+deploy.Lease, deploy.Key)
			require.Equal(t, api.LeaseAlive, deploy.LeaseState)
			require.EqualValues(t, 30, deploy.GrantedTTL)
			require.Len(t, deploy.Waiters, 1)
			require.EqualValues(t, 10, deploy.Waiters[0].GrantedTTL)
			require.Equal(t, "host-1", leader.Value)

			holder.kill()
			l.execute("etcdctl lease revoke " + deploy.Lease)
			require.Equal(t, deploy.Waiters[0].Key, list()[0].Holders[0].Key, "the next in turn")
			d.awaitMetric(1, "unlocker_native_locks", "prefix", "/locks/")
		})
	}
}
