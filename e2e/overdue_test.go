//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timely is how soon after its alert_at the notification of an overdue lock must leave.
const timely = time.Minute

// With the shipped intervals, the notification of each overdue lock leaves in time and before its
// removal, however many are overdue already. Many at once are one notification. Each lock is told of once, also
// where others follow, and that it is over is not told.
func TestEachOverdueLockIsNotifiedInTime(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, newest)
	replicas := map[string][]*daemon{}
	for namespace, series := range map[string]string{"two": "500", "ten": "10", "many": "500", "line": "500"} {
		replicas[namespace] = []*daemon{startDaemon(t, etcd.addr, "--prefix", prefix+namespace+"/", "--metrics-max-lock-series", series)}
	}
	m := startMonitor(t, func(shipped string) string { return shipped }, replicas)

	const many = 500
	due := dueLocks{etcd: etcd, start: time.Now().Truncate(time.Second).Add(5 * time.Second), alertAt: map[string]map[string]time.Time{}}
	due.put("two", "first", 1, 0, timely)
	due.put("two", "second", 1, 45*time.Second, timely) // when the first has just been notified
	due.put("many", "l", many, 0, timely)
	for i := range 10 {
		due.put("ten", strconv.Itoa(i), 1, time.Duration(i)*5*time.Second, time.Hour)
	}
	const line = 60
	for i := range line {
		due.put("line", strconv.Itoa(i), 1, time.Duration(i)*time.Second, timely)
	}
	for namespace, alertAt := range due.alertAt {
		m.requireTimely(t, namespace, alertAt)
	}
	require.LessOrEqual(t, len(m.hook.messages("UnlockerLockOverdue", "many")), 2)

	// One lock more than may have series of their own.
	more := due.put("ten", "more", 1, time.Since(due.start), time.Hour)
	omitted := m.hook.await("UnlockerLockSeriesOmitted", "", "firing", more)
	t.Logf("a lock without series: from alert_at to the webhook %s", omitted.at.Sub(more))
	require.Less(t, omitted.at.Sub(more), timely)

	require.Eventually(t, func() bool { return len(m.hook.firing("UnlockerForcedUnlock", "many")) == many }, 2*soon, poll)
	forced := len(m.hook.messages("UnlockerForcedUnlock", "many"))
	t.Logf("forced unlocks of %d locks: %d messages", many, forced)
	require.LessOrEqual(t, forced, 2)

	require.Eventually(t, func() bool { return len(m.hook.firing("UnlockerForcedUnlock", "line")) == line }, 2*soon, poll)
	m.hook.requireOnce("UnlockerLockOverdue", "line", line)
	m.hook.requireOnce("UnlockerForcedUnlock", "line", line)
	m.hook.requireOnce("UnlockerLockOverdue", "ten", len(due.alertAt["ten"])-1)
}

// A holder whose clock is behind and that renews in time is not notified about, although its
// alert_at is always past according to the clock of Prometheus. Once it stops, the notification is in time.
func TestASlowHolderIsNotifiedByItsOwnClock(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, newest)
	m := startMonitor(t, fast, map[string][]*daemon{"slow": {startDaemon(t, etcd.addr)}})
	const patience = 12 * time.Second
	w := worker{etcd: etcd, lock: "nightly", hostname: "worker-slow.example.org", offset: -30 * time.Second}
	require.Eventually(t, func() bool { return len(m.query(`unlocker:replica_sees_etcd:bool == 1`)) == 1 }, soon, poll)
	alertAt := w.acquire(patience, time.Hour)
	for begin := time.Now(); time.Since(begin) < 2*patience; {
		require.Eventually(t, func() bool { return time.Until(alertAt) < patience-2*time.Second }, soon, poll)
		alertAt = w.renew(patience, time.Hour)
	}
	require.Empty(t, m.hook.firing("UnlockerLockOverdue", "slow"))
	n := m.hook.await("UnlockerLockOverdue", "nightly", "firing", alertAt)
	require.Less(t, n.at.Sub(alertAt), timely/6)
}

// dueLocks writes locks of dead holders, and notes their alert_at by namespace and lock.
type dueLocks struct {
	etcd    *server
	start   time.Time
	alertAt map[string]map[string]time.Time
}

func (d *dueLocks) put(namespace, below string, n int, after, unlock time.Duration) (alertAt time.Time) {
	alertAt = d.start.Add(after)
	d.etcd.putLocks(namespace+"/"+below, n, alertAt, alertAt.Add(unlock))
	if d.alertAt[namespace] == nil {
		d.alertAt[namespace] = map[string]time.Time{}
	}
	for i := range n {
		d.alertAt[namespace][fmt.Sprintf("%s/%05d", below, i)] = alertAt
	}
	return alertAt
}

// requireTimely waits for the notifications of all locks of a deployment.
func (m *monitor) requireTimely(t *testing.T, namespace string, alertAt map[string]time.Time) {
	t.Helper()
	var notified map[string]time.Time
	require.Eventually(t, func() bool {
		notified = m.hook.firing("UnlockerLockOverdue", namespace)
		return len(notified) == len(alertAt)
	}, 2*soon, poll)
	var late []time.Duration
	for lock, at := range notified {
		late = append(late, at.Sub(alertAt[lock]))
	}
	slices.Sort(late)
	last := late[len(late)-1]
	t.Logf("%s: from alert_at to the webhook %s for the first and %s for the last of %d, %d messages",
		namespace, late[0], last, len(late), len(m.hook.messages("UnlockerLockOverdue", namespace)))
	require.Positive(t, late[0])
	require.Less(t, last, timely)
}
