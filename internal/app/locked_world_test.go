package app_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const (
	// user is the user of the daemon, and the name of its role.
	user     = "unlocker"
	password = "secret"
	// election is the prefix of the keys of the election for prefix.
	election = "/unlocker/leader" + prefix
	// pauses is the prefix of the pauses for prefix.
	pauses = "/unlocker/pause" + prefix
)

// locked is an etcd with authentication.
type locked struct {
	*etcdtest.Etcd
	t *testing.T
}

// lockDown enables authentication, with a user and a role that may only read the pauses and the tickets, and read
// and write records.
func lockDown(t *testing.T, o localetcd.Options) *locked {
	t.Helper()
	l := &locked{etcdtest.Start(t, o), t}
	l.Guard(user, password)
	l.below(auditPrefix)
	l.read(pauses)
	l.read("/unlocker/waiters" + prefix)
	return l
}

func (l *locked) ctx() context.Context { return l.t.Context() }

func (l *locked) grant(from, end string, kind clientv3.PermissionType) {
	l.t.Helper()
	_, err := l.Client.RoleGrantPermission(l.ctx(), user, from, end, kind)
	require.NoError(l.t, err)
}

// below grants what docs/etcd-access.md says, for one prefix.
func (l *locked) below(prefix string) {
	l.t.Helper()
	l.grant(prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
}

func (l *locked) read(prefix string) {
	l.t.Helper()
	l.grant(prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermRead))
}

func (l *locked) revoke(prefix string) {
	l.t.Helper()
	_, err := l.Client.RoleRevokePermission(l.ctx(), user, prefix, clientv3.GetPrefixRangeEnd(prefix))
	require.NoError(l.t, err)
}

func asUser(c *config.Config) { c.Etcd.Username, c.Etcd.Password = user, config.NewSecret(password) }

// fast shortens the intervals of the election and of the resync.
func fast(c *config.Config) {
	resyncing(c)
	c.Election.TTL = 2 * time.Second
}

// resyncing shortens only that of the resync, so that a stall for a few seconds loses no election.
func resyncing(c *config.Config) { c.ResyncInterval, c.Reaper.OrphanGrace = time.Second, time.Second }

func (l *locked) daemon(edits ...func(*config.Config)) *daemon {
	l.t.Helper()
	return startDaemon(l.t, l.Endpoints(), append([]func(*config.Config){asUser}, edits...)...)
}

// requireWorking makes the daemon do everything that it does in etcd, with locks under name.
func (l *locked) requireWorking(d *daemon, name string) {
	l.t.Helper()
	d.awaitReaping()
	d.awaitMetric(1, "unlocker_leader")
	began := float64(time.Now().Unix())
	refused := func() float64 {
		const failures = "unlocker_forced_unlock_failures_total"
		return d.metric(failures, "reason", "permission_denied") + d.metric(failures, "reason", "auth")
	}
	before := refused()
	due := time.Now().Add(time.Second)
	l.Put(l.Lock(name+"/held", time.Now().Add(time.Hour), time.Now().Add(time.Hour))...)
	l.Put(l.Lock(name+"/due", due, due)...)
	l.Put(clientv3.OpPut(prefix+name+"/orphan/auto_unlock_at", etcdtest.Stamp(due)))
	d.awaitMetric(1, "unlocker_locks", "state", "held")
	awaitKeys(l.t, l.Etcd, 0, name+"/due/")
	awaitKeys(l.t, l.Etcd, 0, name+"/orphan/")
	etcdtest.Eventually(l.t, func() bool { return d.metric("unlocker_last_resync_timestamp_seconds") > began })
	require.Len(l.t, l.Keys(name), fieldsOfALock)
	d.awaitMetric(1, "unlocker_etcd_up")
	require.Equal(l.t, before, refused())
	require.Zero(l.t, d.metric("unlocker_resync_drift_total"))
	l.Put(clientv3.OpDelete(prefix+name+"/", clientv3.WithPrefix()))
	d.awaitMetric(0, "unlocker_locks")
}

// warnings counts the warnings and errors of the log by their text. It excludes those of holds and of
// a member that hangs, which on a busy machine may be repeated.
func (d *daemon) warnings() map[string]int {
	count := map[string]int{}
	for _, line := range d.log.Lines("") {
		if warning := line["level"] == "WARN" || line["level"] == "ERROR"; warning && line["hold"] == nil && line["msg"] != api.LogMemberHangs {
			count[fmt.Sprint(line["msg"], "; prefix=", line["prefix"], "; reason=", line["reason"], "; error=", line["error"])]++
		}
	}
	return count
}

// warningsAtFailure formats the warnings when a failure is reported.
type warningsAtFailure struct{ *daemon }

func (w warningsAtFailure) String() string { return fmt.Sprint(w.warnings()) }

// warned counts the warnings that contain all words.
func (d *daemon) warned(words ...string) (n int) {
	for warning, times := range d.warnings() {
		if containsAll(warning, words) {
			n += times
		}
	}
	return n
}

// warnsOnce waits for a warning that contains all words, and requires that no warning is
// repeated.
func (d *daemon) warnsOnce(words ...string) {
	d.t.Helper()
	etcdtest.Eventually(d.t, func() bool { return d.warned(words...) > 0 }, "%q in %s", words, warningsAtFailure{d})
	for warning, times := range d.warnings() {
		require.Equal(d.t, 1, times, warning)
	}
}
