package app_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// What the log and /readyz say about a missing permission.
const (
	needsLocks    = `etcdserver: permission denied: user "unlocker" needs readwrite on [/mutexes/, /mutexes0) (prefix /mutexes/)`
	needsElection = `etcdserver: permission denied: user "unlocker" needs readwrite on [/unlocker/leader/mutexes/, /unlocker/leader/mutexes0) (prefix /unlocker/leader/mutexes/)`
	needsPauses   = `etcdserver: permission denied: user "unlocker" needs read on [/unlocker/pause/mutexes/, /unlocker/pause/mutexes0) (prefix /unlocker/pause/mutexes/)`
	badPassword   = `authentication failed, invalid user ID or password: etcd.username "unlocker" with the password of etcd.password`
)

func containsAll(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

func TestLockedRoleSuffices(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	d := l.daemon(fast)
	l.requireWorking(d, "a")
	require.Zero(t, d.metric("unlocker_watch_restarts_total"))
	require.Equal(t, 0, d.warned("denied"), d.warnings())
}

// A part of the role is missing from the start. The daemon logs it once, stays alive, and
// works as soon as the part is granted.
func TestLockedPartOfTheRoleMissing(t *testing.T) {
	t.Parallel()
	readWrite, read := clientv3.PermissionType(clientv3.PermReadWrite), clientv3.PermissionType(clientv3.PermRead)
	end := clientv3.GetPrefixRangeEnd(prefix)
	for name, tt := range map[string]struct {
		grant func(*locked)
		fix   func(*locked)
		check func(*locked, *daemon)
	}{
		"the locks": {func(l *locked) { l.below(election) }, func(l *locked) { l.below(prefix) }, requireNoListing},
		"the locks but not the key of the prefix": {
			func(l *locked) { l.below(election); l.grant(prefix, "", readWrite) },
			func(l *locked) { l.below(prefix) }, requireNoListing,
		},
		"to write locks": {
			func(l *locked) { l.below(election); l.grant(prefix, end, read) },
			func(l *locked) { l.below(prefix) }, requireNoRemoval,
		},
		"the election": {func(l *locked) { l.below(prefix) }, func(l *locked) { l.below(election) }, requireNoLeader},
		"the election but not its key": {
			func(l *locked) { l.below(prefix); l.grant(strings.TrimSuffix(election, "/"), "", readWrite) },
			func(l *locked) { l.below(election) }, requireNoLeader,
		},
		"the pauses": {func(l *locked) { l.below(prefix); l.below(election); l.revoke(pauses) }, func(l *locked) { l.read(pauses) }, requireNoPauses},
		"the role": {
			func(l *locked) {
				l.below(prefix)
				l.below(election)
				_, err := l.Client.UserRevokeRole(l.ctx(), user, user)
				require.NoError(l.t, err)
			},
			func(l *locked) {
				_, err := l.Client.UserGrantRole(l.ctx(), user, user)
				require.NoError(l.t, err)
			},
			func(l *locked, d *daemon) {
				requireNoListing(l, d)
				d.warnsOnce(api.LogElectionFailed, needsElection)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lockDown(t, localetcd.Options{})
			tt.grant(l)
			d := l.daemon(fast)
			tt.check(l, d)
			status, _ := d.get("/livez")
			require.Equal(t, http.StatusOK, status)
			tt.fix(l)
			if name == "to write locks" {
				return // the daemon retries the removal after a minute
			}
			l.requireWorking(d, "fixed")
		})
	}
}

// requireNoListing requires that the daemon cannot list the locks, and that the log,
// /readyz, unlocker_etcd_up and a hold show it.
func requireNoListing(l *locked, d *daemon) {
	d.warnsOnce(api.LogWatchFailed, "reason=permission_denied", needsLocks)
	etcdtest.Eventually(l.t, func() bool { return d.metric("unlocker_watch_restarts_total", "reason", "permission_denied") > 3 })
	require.Equal(l.t, 1, d.warned(needsLocks), "one line for all attempts: %v", d.warnings())
	status, body := d.get("/readyz")
	require.Equal(l.t, http.StatusServiceUnavailable, status)
	require.Contains(l.t, body, "not ready: the first listing of /mutexes/ is not done: ")
	require.Contains(l.t, body, needsLocks)
	require.Zero(l.t, d.metric("unlocker_etcd_up"))
	require.EqualValues(l.t, 1, d.metric("unlocker_reaper_hold", "reason", "starting"))
}

// requireNoPauses requires that the daemon lists the locks but removes none, since it cannot know
// whether that is paused, and that the log, /readyz and a hold show it.
func requireNoPauses(l *locked, d *daemon) {
	d.warnsOnce(api.LogPrefixFailed, needsPauses)
	d.awaitMetric(1, "unlocker_etcd_up")
	d.awaitMetric(1, "unlocker_reaper_hold") // the other holds end
	require.EqualValues(l.t, 1, d.metric("unlocker_reaper_hold", "reason", "disconnected"))
	status, body := d.get("/readyz")
	require.Equal(l.t, http.StatusServiceUnavailable, status)
	require.Contains(l.t, body, "not ready: cannot load pauses under /unlocker/pause/mutexes/: "+needsPauses)
	due := time.Now().Add(time.Second)
	l.Put(l.Lock("due", due, due)...)
	d.awaitMetric(1, "unlocker_reaper_backlog")
	var page api.LockPage
	require.Equal(l.t, http.StatusOK, d.getAPI("/api/v1/locks", &page))
	require.Contains(l.t, page.Locks[0].Explanation, "; removals on hold since ")
	require.Contains(l.t, page.Locks[0].Explanation, needsPauses)
	l.Put(clientv3.OpDelete(prefix+"due/", clientv3.WithPrefix()))
}

// requireNoRemoval requires that the daemon lists the locks but cannot remove them, and that
// the log and a counter show it.
func requireNoRemoval(l *locked, d *daemon) {
	d.awaitReaping()
	l.Put(l.Lock("due", time.Now(), time.Now())...)
	d.warnsOnce(api.LogCannotRemove, "reason=permission_denied", needsLocks)
	d.awaitMetric(1, "unlocker_forced_unlock_failures_total", "reason", "permission_denied")
	d.awaitMetric(1, "unlocker_reaper_backlog")
	require.Len(l.t, l.Keys(""), fieldsOfALock)
}

// requireNoLeader requires that the daemon removes locks after the standby delay, and that
// the log and unlocker_leader show that it does not lead.
func requireNoLeader(l *locked, d *daemon) {
	d.warnsOnce(api.LogElectionFailed, "reason=permission_denied", needsElection)
	d.awaitReaping()
	due := time.Now().Add(time.Second)
	l.Put(l.Lock("late", due, due)...)
	awaitKeys(l.t, l.Etcd, 0, "")
	require.Greater(l.t, time.Since(due), standbyDelay)
	require.Zero(l.t, d.metric("unlocker_leader"))
	require.Equal(l.t, 1, d.warned(needsElection), "one line for all attempts: %v", d.warnings())
}

// A running daemon loses its permissions and gets them back.
func TestLockedOutWhileRunning(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		out  func(*locked) error
		back func(*locked) error
		want string
	}{
		"user deleted": {
			func(l *locked) error { _, err := l.Client.UserDelete(l.ctx(), user); return err },
			func(l *locked) error {
				if _, err := l.Client.UserAdd(l.ctx(), user, password); err != nil {
					return err
				}
				_, err := l.Client.UserGrantRole(l.ctx(), user, user)
				return err
			}, badPassword,
		},
		"password changed": {
			func(l *locked) error { _, err := l.Client.UserChangePassword(l.ctx(), user, "other"); return err },
			func(l *locked) error { _, err := l.Client.UserChangePassword(l.ctx(), user, password); return err }, badPassword,
		},
		"role taken from the user": {
			func(l *locked) error { _, err := l.Client.UserRevokeRole(l.ctx(), user, user); return err },
			func(l *locked) error { _, err := l.Client.UserGrantRole(l.ctx(), user, user); return err }, needsLocks,
		},
		"permission taken from the role": {
			func(l *locked) error { l.revoke(prefix); return nil },
			func(l *locked) error { l.below(prefix); return nil }, needsLocks,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lockDown(t, localetcd.Options{})
			l.below(prefix)
			l.below(election)
			d := l.daemon(fast)
			l.requireWorking(d, "before")
			require.NoError(t, tt.out(l))
			d.awaitMetric(0, "unlocker_etcd_up")
			d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
			d.warnsOnce(tt.want)
			require.NoError(t, tt.back(l))
			l.requireWorking(d, "after")
		})
	}
}

// etcd does not end a watch when its permission is revoked. A removal fails first, long
// before the next listing.
func TestLockedOutWhileTheWatchContinues(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	d := l.daemon()
	d.awaitReaping()
	l.revoke(prefix)
	l.Put(l.Lock("due", time.Now(), time.Now())...)
	etcdtest.Eventually(t, func() bool {
		return d.warned(api.LogCannotRead, needsLocks) > 0 && d.metric("unlocker_forced_unlock_failures_total", "reason", "permission_denied") > 0 ||
			d.warned(api.LogWatchFailed, needsLocks) > 0 // on a busy machine it may end first
	})
	l.below(prefix)
	awaitKeys(t, l.Etcd, 0, "")
}

// The watch continues after a change of the password, so that only the probe fails.
func TestLockedOutByAPasswordIsTheReasonOfTheHold(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	d := l.daemon()
	d.awaitReaping()
	_, err := l.Client.UserChangePassword(l.ctx(), user, "rotated")
	require.NoError(t, err)
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	etcdtest.Eventually(t, func() bool { // on a busy machine the watch may end first
		var status api.Status
		return d.getAPI("/api/v1/status", &status) == http.StatusOK && status.Holds[0].Reason == "the probe fails: etcdserver: "+badPassword
	})
}

func TestLockedPasswordFileRotated(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	d := l.daemon(fast, func(c *config.Config) { c.Etcd.Password, c.Etcd.PasswordFile = config.Secret{}, file })
	l.requireWorking(d, "before")

	_, err := l.Client.UserChangePassword(l.ctx(), user, "rotated")
	require.NoError(t, err)
	d.awaitMetric(0, "unlocker_etcd_up")
	d.warnsOnce(badPassword + "_file " + file)
	require.NoError(t, os.WriteFile(file, []byte("rotated\n"), 0o600))
	l.requireWorking(d, "after")
}

// Authentication is enabled while a daemon runs, with a user and without.
func TestLockedWhileRunning(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*config.Config){
		"with a user": asUser, "without": func(*config.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lockDown(t, localetcd.Options{})
			l.below(prefix)
			l.below(election)
			_, err := l.Client.AuthDisable(l.ctx())
			require.NoError(t, err)
			d := startDaemon(t, l.Endpoints(), fast, edit)
			l.requireWorking(d, "before")
			_, err = l.Client.AuthEnable(l.ctx())
			require.NoError(t, err)
			if name == "without" {
				d.awaitMetric(0, "unlocker_etcd_up")
				d.warnsOnce("etcd has authentication on: set etcd.username")
				return
			}
			l.requireWorking(d, "after")
			// The watch goes on; but a check of the history, which a busy machine can need just now, is refused until the login.
			require.EqualValues(t, d.warned("check during the watch"), d.metric("unlocker_watch_restarts_total"), d.warnings())
		})
	}
}
