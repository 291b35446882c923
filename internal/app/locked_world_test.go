package app_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
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
	t       *testing.T
	cluster *localetcd.Cluster
	root    *clientv3.Client
}

// lockDown turns authentication on, with a user and a role without permissions.
func lockDown(t *testing.T, o localetcd.Options) *locked {
	t.Helper()
	cluster, admin := newEtcd(t, o)
	l := &locked{t: t, cluster: cluster, root: admin}
	l.addUser("root", password)
	l.addUser(user, password)
	l.enableAuth()
	return l
}

func (l *locked) addUser(name, password string) {
	l.t.Helper()
	_, err := l.root.RoleAdd(l.ctx(), name)
	require.NoError(l.t, err)
	_, err = l.root.UserAdd(l.ctx(), name, password)
	require.NoError(l.t, err)
	_, err = l.root.UserGrantRole(l.ctx(), name, name)
	require.NoError(l.t, err)
}

func (l *locked) enableAuth() {
	l.t.Helper()
	_, err := l.root.AuthEnable(l.ctx())
	require.NoError(l.t, err)
	l.root, err = l.cluster.Client(func(c *clientv3.Config) { c.Username, c.Password = "root", password })
	require.NoError(l.t, err)
}

func (l *locked) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	l.t.Cleanup(cancel)
	return ctx
}

func (l *locked) grant(from, end string, kind clientv3.PermissionType) {
	l.t.Helper()
	_, err := l.root.RoleGrantPermission(l.ctx(), user, from, end, kind)
	require.NoError(l.t, err)
}

// below gives what docs/etcd-access.md says, for one prefix.
func (l *locked) below(prefix string) {
	l.t.Helper()
	l.grant(prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
}

func (l *locked) revoke(prefix string) {
	l.t.Helper()
	_, err := l.root.RoleRevokePermission(l.ctx(), user, prefix, clientv3.GetPrefixRangeEnd(prefix))
	require.NoError(l.t, err)
}

func asUser(c *config.Config) { c.Etcd.Username, c.Etcd.Password = user, config.NewSecret(password) }

// brisk lets the election and the resync notice soon.
func brisk(c *config.Config) {
	c.Election.TTL, c.ResyncInterval, c.Reaper.OrphanGrace = 2*time.Second, time.Second, time.Second
}

func (l *locked) daemon(edits ...func(*config.Config)) *daemon {
	l.t.Helper()
	return startDaemon(l.t, l.cluster.Endpoints(), append([]func(*config.Config){asUser}, edits...)...)
}

// serves takes the daemon through all that it does in etcd, with locks below a name.
func (l *locked) serves(d *daemon, name string) {
	l.t.Helper()
	d.awaitReaping()
	d.awaitMetric(1, "unlocker_leader")
	began := float64(time.Now().Unix())
	failures := d.metric("unlocker_forced_unlock_failures_total")
	due := time.Now().Add(time.Second)
	put(l.t, l.root, fields(name+"/held", time.Now().Add(time.Hour), time.Now().Add(time.Hour))...)
	put(l.t, l.root, fields(name+"/due", due, due)...)
	put(l.t, l.root, clientv3.OpPut(prefix+name+"/orphan/auto_unlock_at", stamp(due)))
	d.awaitMetric(1, "unlocker_locks", "state", "held")
	awaitKeys(l.t, l.root, 0, prefix+name+"/due/")
	awaitKeys(l.t, l.root, 0, prefix+name+"/orphan/")
	require.Eventually(l.t, func() bool { return d.metric("unlocker_last_resync_timestamp_seconds") > began }, soon, poll)
	require.EqualValues(l.t, 7, keys(l.t, l.root, prefix+name))
	require.EqualValues(l.t, 1, d.metric("unlocker_etcd_up"))
	require.Equal(l.t, failures, d.metric("unlocker_forced_unlock_failures_total"))
	require.Zero(l.t, d.metric("unlocker_resync_drift_total"))
	put(l.t, l.root, clientv3.OpDelete(prefix+name+"/", clientv3.WithPrefix()))
	d.awaitMetric(0, "unlocker_locks")
}

// loud counts what was logged as a warning or an error, by what it says; but for
// holds, which begin again.
func (l *logBuffer) loud() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := map[string]int{}
	for _, line := range l.lines {
		if loud := line["level"] == "WARN" || line["level"] == "ERROR"; loud && line["hold"] == nil {
			count[fmt.Sprint(line["msg"], "; reason=", line["reason"], "; error=", line["error"])]++
		}
	}
	return count
}

// loudly tells what was loud by the time that a failure is told.
type loudly struct{ *logBuffer }

func (l loudly) String() string { return fmt.Sprint(l.loud()) }

// says returns how often something that holds the words was said loudly.
func (d *daemon) says(words ...string) (n int) {
	for said, times := range d.log.loud() {
		if containsAll(said, words) {
			n += times
		}
	}
	return n
}

// saysOnce waits until words are said, and requires that nothing is said twice.
func (d *daemon) saysOnce(words ...string) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.says(words...) > 0 }, soon, poll, "%q in %s", words, loudly{d.log})
	for said, times := range d.log.loud() {
		require.Equal(d.t, 1, times, said)
	}
}
