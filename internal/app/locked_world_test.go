package app_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// user is the daemon's, and the name of its role.
const (
	user     = "unlocker"
	password = "secret"
	// election is the prefix of the election's keys that belongs to prefix.
	election = "/unlocker/leader" + prefix
)

// locked is an etcd with authentication.
type locked struct {
	*etcdtest.Etcd
	t *testing.T
}

// lockDown turns authentication on, with a user and a role without permissions.
func lockDown(t *testing.T, o localetcd.Options) *locked {
	t.Helper()
	l := &locked{etcdtest.Start(t, o), t}
	l.Guard(user, password)
	return l
}

func (l *locked) ctx() context.Context { return l.t.Context() }

func (l *locked) grant(from, end string, kind clientv3.PermissionType) {
	l.t.Helper()
	_, err := l.Client.RoleGrantPermission(l.ctx(), user, from, end, kind)
	require.NoError(l.t, err)
}

// below gives what docs/etcd-access.md says, for one prefix.
func (l *locked) below(prefix string) {
	l.t.Helper()
	l.grant(prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
}

func (l *locked) revoke(prefix string) {
	l.t.Helper()
	_, err := l.Client.RoleRevokePermission(l.ctx(), user, prefix, clientv3.GetPrefixRangeEnd(prefix))
	require.NoError(l.t, err)
}

func asUser(c *config.Config) { c.Etcd.Username, c.Etcd.Password = user, config.NewSecret(password) }

// brisk lets the election and the resync notice soon.
func brisk(c *config.Config) {
	c.Election.TTL, c.ResyncInterval, c.Reaper.OrphanGrace = 2*time.Second, time.Second, time.Second
}

func (l *locked) daemon(edits ...func(*config.Config)) *daemon {
	l.t.Helper()
	return startDaemon(l.t, l.Endpoints(), append([]func(*config.Config){asUser}, edits...)...)
}

// serves takes the daemon through all that it does in etcd, with locks below a name.
func (l *locked) serves(d *daemon, name string) {
	l.t.Helper()
	d.awaitReaping()
	d.awaitMetric(1, "unlocker_leader")
	began := float64(time.Now().Unix())
	failures := d.metric("unlocker_forced_unlock_failures_total")
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
	require.Equal(l.t, failures, d.metric("unlocker_forced_unlock_failures_total"))
	require.Zero(l.t, d.metric("unlocker_resync_drift_total"))
	l.Put(clientv3.OpDelete(prefix+name+"/", clientv3.WithPrefix()))
	d.awaitMetric(0, "unlocker_locks")
}

// loud counts what was logged as a warning or an error, by what it says; but for
// holds, which begin again.
func (d *daemon) loud() map[string]int {
	count := map[string]int{}
	for _, line := range d.log.Lines("") {
		if loud := line["level"] == "WARN" || line["level"] == "ERROR"; loud && line["hold"] == nil {
			count[fmt.Sprint(line["msg"], "; reason=", line["reason"], "; error=", line["error"])]++
		}
	}
	return count
}

// loudly prints what was loud by the time that a failure is reported.
type loudly struct{ *daemon }

func (l loudly) String() string { return fmt.Sprint(l.loud()) }

// says returns how often something that holds the words was said loudly.
func (d *daemon) says(words ...string) (n int) {
	for said, times := range d.loud() {
		if containsAll(said, words) {
			n += times
		}
	}
	return n
}

// saysOnce waits until words are said, and requires that nothing is said twice.
func (d *daemon) saysOnce(words ...string) {
	d.t.Helper()
	etcdtest.Eventually(d.t, func() bool { return d.says(words...) > 0 }, "%q in %s", words, loudly{d})
	for said, times := range d.loud() {
		require.Equal(d.t, 1, times, said)
	}
}
