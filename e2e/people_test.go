//go:build e2e

package e2e

import (
	"os/exec"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex"
)

// requirePeople pauses and unlocks as a person with the role of the page for people, and requires that
// the daemon sees the pause and who unlocked; then unlocks without the right to leave a record.
func (l *lockedEtcd) requirePeople(d *daemon) {
	l.t.Helper()
	l.execute(append(commands(l.t, "people"), "etcdctl user add ada --no-password", "etcdctl user grant-role ada unlocker-people")...)
	later := time.Now().Add(time.Hour)
	l.putLocks("stuck", 2, later, later)
	cert, key := l.issue(l.t, "ada")
	ada := func(args ...string) string {
		args = append(args, "--etcd-endpoints", l.addr, "--etcd-tls-ca-file", l.ca, "--etcd-tls-cert-file", cert, "--etcd-tls-key-file", key)
		args = append(args, patient...)
		out, err := exec.CommandContext(l.t.Context(), unlocker, args...).CombinedOutput()
		require.NoError(l.t, err, string(out))
		return string(out)
	}
	ada("pause", "--for", "1m", "--reason", "OPS-1")
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "paused")
	ada("resume")
	d.awaitMetric(0, "unlocker_reaper_hold", "reason", "paused")
	locks, err := mutex.New(l.client, mutex.KeepAlive(time.Hour))
	require.NoError(l.t, err)
	held, err := locks.TryLock(l.t.Context(), "asked")
	require.NoError(l.t, err)
	require.Regexp(l.t, `(?s)^its process answered within .*Answered: .*Stack:`, ada("ask", "asked"))
	require.NoError(l.t, held.Unlock(l.t.Context()))
	unlock := func(name string) string {
		return ada("unlock", name, "--uuid", "uuid of "+name, "--reason", "OPS-1", "--yes")
	}
	require.NotContains(l.t, unlock("stuck/00000"), "refuses")
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "manual")
	require.Regexp(l.t, `manual\n    ended .* UTC by .*: OPS-1\n`, ada("history", "stuck/00000"))
	l.execute("etcdctl role revoke-permission unlocker-people --prefix /unlocker/audit/mutexes/")
	require.Contains(l.t, unlock("stuck/00001"), `etcd refuses the record of this unlock, so that none is left: etcdserver: permission denied: user "ada"`)
	l.awaitGone("stuck/")
	require.Regexp(l.t, `the records of removals could not be read: .*: permission denied: user "ada" .*needs read on`, ada("history", "stuck/00000"))
	require.EqualValues(l.t, 1, d.metric("unlocker_forced_unlocks_total", "trigger", "manual"))
}
