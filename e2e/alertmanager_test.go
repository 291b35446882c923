//go:build e2e

package e2e

import (
	"html"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Exported metrics become alerts and are shown in the dashboard, with the real programs.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	s := startStack(t)
	t.Run("alerts", s.testAlerts)
	t.Run("orphan", s.testOrphan)
	t.Run("alarm", s.testAlarm)
	t.Run("dashboard", s.testDashboard)
	t.Run("drill", s.testDrill)
}

// The whole chain, as a user proves it.
func (s *stack) testDrill(t *testing.T) {
	cert, key := s.etcd.issue(t, "unlocker")
	args := []string{"drill", "--alert-after", "2s", "--unlock-after", "15s", "--prometheus", s.prometheus, "--alertmanager", s.alertmanager,
		"--etcd-tls-ca-file", s.etcd.ca, "--etcd-tls-cert-file", cert, "--etcd-tls-key-file", key}
	for _, r := range s.replicas {
		args = append(args, "--url", r.web("http"))
	}
	got := command(t, s.etcd.addr, args...)
	require.Zero(t, got.code, got.stdout)
	require.Contains(t, got.stdout, "overdue in Prometheus\n")
	require.Contains(t, got.stdout, "alert in Alertmanager\n")
	require.NotContains(t, got.stdout, "✗")
	t.Logf("\n%s", got.stdout)
}

// A worker is overdue, renews, and dies.
func (s *stack) testAlerts(t *testing.T) {
	w := &worker{etcd: s.etcd.server, lock: "billing/invoices +ü", hostname: "worker-1.example.org", owner: "billing"}
	alertAt := w.acquire(2*time.Second, time.Hour)
	overdue := s.hook.await("UnlockerLockOverdue", w.lock, "firing", alertAt)
	t.Logf("from overdue to the webhook: %s (scraped and evaluated every %s, group_wait 100ms)", overdue.at.Sub(alertAt), interval)
	require.Equal(t, map[string]string{
		"alertname": "UnlockerLockOverdue", "severity": "warning", "job": "unlocker", "namespace": "e2e",
		"lock": w.lock, "hostname": w.hostname, "owner": w.owner, "when": toTenSeconds(alertAt),
	}, overdue.Labels)
	require.Equal(t, "Lock billing/invoices +ü is overdue, held by worker-1.example.org", overdue.Annotations["summary"])
	require.Contains(t, overdue.Annotations["description"], "held by billing on worker-1.example.org")
	require.Contains(t, overdue.Annotations["description"], "it may be force-unlocked from "+alertAt.Add(time.Hour-2*time.Second).UTC().Format(time.DateTime))
	require.Contains(t, overdue.Annotations["description"], "Whether its holder still renews it is not known: no replica has seen a rhythm.")
	require.Equal(t, "http://unlocker.example.com/locks/billing/invoices%20%2B%C3%BC", overdue.Annotations["dashboard_url"])
	require.Equal(t, "/billing", overdue.receiver)
	require.Contains(t, s.follow(t, s.replicas[0], overdue.Annotations["dashboard_url"]), "uuid of billing/invoices +ü of worker-1.example.org")

	w.renew(time.Hour, 2*time.Hour)
	s.awaitResolved("UnlockerLockOverdue")

	// The last renewal.
	died := time.Now()
	const outlook = 15 * time.Second // the notification that it is overdue comes first on a busy machine, too
	w.renew(time.Second, outlook)
	overdue = s.hook.await("UnlockerLockOverdue", w.lock, "firing", died)
	require.Regexp(t, `Its holder (still renews it, the last time [\d.]+s ago|has not renewed it for [\d.]+s \(renewals missed: \d+\).*)\.$`, overdue.Annotations["description"])
	forced := s.hook.await("UnlockerForcedUnlock", w.lock, "firing", died)
	t.Logf("from auto_unlock_at to the webhook of the forced unlock: %s", forced.at.Sub(died.Add(outlook)))
	require.Equal(t, map[string]string{
		"alertname": "UnlockerForcedUnlock", "severity": "warning", "job": "unlocker", "namespace": "e2e",
		"lock": w.lock, "hostname": w.hostname, "owner": "billing", "trigger": "expiry", "when": forced.Labels["when"],
	}, forced.Labels)
	require.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d0 UTC$`, forced.Labels["when"])
	require.Equal(t, "Lock billing/invoices +ü of worker-1.example.org was force-unlocked", forced.Annotations["summary"])
	require.Equal(t, "/billing", forced.receiver)
	s.requireRecord(t, forced, "uuid of billing/invoices +ü of worker-1.example.org")
	s.awaitResolved("UnlockerLockOverdue")
	s.etcd.awaitGone(w.lock + "/")
	require.Equal(t, []string{"UnlockerForcedUnlock", "UnlockerLockOverdue"}, s.hook.alerts(), "there must be no other alert")
	s.checkRules(t)
	for _, a := range readAlerts(t) {
		if link := a.Annotations["dashboard_url"]; link != "" && !strings.Contains(link, "{{") {
			s.follow(t, s.replicas[0], link)
		}
	}
}

// A blind renewal after an unlock leaves fields that nobody holds.
func (s *stack) testOrphan(t *testing.T) {
	w := &worker{etcd: s.etcd.server, lock: "stray"}
	now := time.Now()
	w.commit(now, now, now.Add(time.Hour), clientv3.Compare(clientv3.Version(w.key("uuid")), "=", 0))
	orphan := s.hook.await("UnlockerForcedUnlock", w.lock, "firing", now)
	require.Equal(t, map[string]string{
		"alertname": "UnlockerForcedUnlock", "severity": "warning", "job": "unlocker", "namespace": "e2e", "lock": w.lock, "trigger": "orphan", "when": orphan.Labels["when"],
	}, orphan.Labels)
	require.Equal(t, "Orphaned fields of lock stray were removed", orphan.Annotations["summary"])
	require.Contains(t, orphan.Annotations["description"], "No process held the lock.")
	require.Equal(t, "/locks", orphan.receiver)
	s.requireRecord(t, orphan, "<strong>orphan</strong>")
}

// A lock that becomes overdue while its holder cannot renew is notified too: it may be removed soon
// after the alarm is disarmed, and the alert on the alarm fires longer than that.
func (s *stack) testAlarm(t *testing.T) {
	w := &worker{etcd: s.etcd.server, lock: "reports", hostname: "worker-2.example.org", owner: "billing"}
	taken := time.Now()
	alertAt := w.acquire(20*time.Second, time.Hour)
	_, err := etcdserverpb.NewMaintenanceClient(s.etcd.client.ActiveConnection()).Alarm(t.Context(),
		&etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE})
	require.NoError(t, err)
	require.Equal(t, "/on-call", s.hook.await("UnlockerEtcdAlarm", "", "firing", taken).receiver)
	require.True(t, time.Now().Before(alertAt), "the alarm must be sent first")
	s.hook.await("UnlockerLockOverdue", w.lock, "firing", alertAt)
	_, err = s.etcd.client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
	_, err = s.etcd.client.Delete(t.Context(), w.key(""), clientv3.WithPrefix())
	require.NoError(t, err)
}

// toTenSeconds is the label by which Alertmanager groups what is notified together.
func toTenSeconds(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05")[:18] + "0 UTC" }

// awaitResolved waits until no such alert fires: of locks, Alertmanager sends no "resolved".
func (s *stack) awaitResolved(alert string) {
	require.Eventually(s.t, func() bool { return len(s.query(`ALERTS{alertname="`+alert+`"}`)) == 0 }, soon, poll)
}

// requireRecord follows the link of a forced unlock to each replica: the one that removed the lock, and the other,
// which has read the record.
func (s *stack) requireRecord(t *testing.T, forced notice, want string) {
	for _, d := range s.replicas {
		require.Eventually(t, func() bool {
			return strings.Contains(s.follow(t, d, forced.Annotations["dashboard_url"]), want)
		}, soon, poll)
	}
}

// follow gets the page of a link in an alert from a real replica. That of a lock is there when the lock
// is gone, too.
func (s *stack) follow(t *testing.T, d *daemon, link string) (body string) {
	t.Helper()
	status, raw, err := s.get(strings.Replace(link, "http://unlocker.example.com", d.web("http"), 1))
	require.NoError(t, err)
	body = html.UnescapeString(string(raw))
	if status != http.StatusNotFound || !strings.Contains(body, "There is no such lock now.") {
		require.Equal(t, http.StatusOK, status, "%s\n%s", link, raw)
	}
	return body
}

// checkRules checks that each rule can be evaluated on the metrics of real daemons.
func (s *stack) checkRules(t *testing.T) {
	var found struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	s.ask("/api/v1/rules", &found)
	require.Len(t, found.Groups, 1)
	require.Greater(t, len(found.Groups[0].Rules), len(readAlerts(t)))
	for _, r := range found.Groups[0].Rules {
		require.Equal(t, "ok", r.Health, "%s: %s", r.Name, r.LastError)
	}
}
