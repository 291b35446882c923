//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/message"
)

// Exported metrics become alerts and are shown in the dashboard, with the real programs.
func TestMonitoring(t *testing.T) {
	s := startStack(t)
	t.Run("alerts", s.testAlerts)
	t.Run("dashboard", s.testDashboard)
}

// A worker is overdue, renews, and dies.
func (s *stack) testAlerts(t *testing.T) {
	w := &worker{etcd: s.etcd.server, lock: "billing/invoices +ü", hostname: "worker-1.example.org", owner: "invoices"}
	alertAt := w.acquire(2*time.Second, time.Hour)
	overdue := s.hook.await("UnlockerLockOverdue", w.lock, "firing", alertAt)
	t.Logf("from overdue to the webhook: %s (scraped and evaluated every %s, group_wait 100ms)", overdue.at.Sub(alertAt), interval)
	require.Equal(t, map[string]string{
		"alertname": "UnlockerLockOverdue", "severity": "warning", "job": "unlocker", "namespace": "e2e",
		"lock": w.lock, "hostname": w.hostname, "owner": w.owner,
	}, overdue.Labels)
	require.Equal(t, "Lock billing/invoices +ü is overdue, held by worker-1.example.org", overdue.Annotations["summary"])
	require.Contains(t, overdue.Annotations["description"], "held by invoices on worker-1.example.org")
	require.Contains(t, overdue.Annotations["description"], "it may be force-unlocked from "+alertAt.Add(time.Hour-2*time.Second).UTC().Format(time.DateTime))
	require.Equal(t, "http://unlocker.example.com/locks/billing/invoices%20%2B%C3%BC", overdue.Annotations["dashboard_url"])
	require.Equal(t, "/team", overdue.receiver)
	require.Contains(t, s.follow(t, overdue.Annotations["dashboard_url"]), `"uuid of billing/invoices +ü of worker-1.example.org"`)

	renewed := time.Now()
	w.renew(time.Hour, 2*time.Hour)
	resolved := s.hook.await("UnlockerLockOverdue", w.lock, "resolved", renewed)
	t.Logf("from the renewal to the resolved alert: %s", resolved.at.Sub(renewed))
	require.Equal(t, w.hostname, resolved.Labels["hostname"])

	// The last renewal.
	died := time.Now()
	w.renew(time.Second, 6*time.Second)
	s.hook.await("UnlockerLockOverdue", w.lock, "firing", died)
	forced := s.hook.await("UnlockerForcedUnlock", w.lock, "firing", died)
	t.Logf("from auto_unlock_at to the webhook of the forced unlock: %s", forced.at.Sub(died.Add(6*time.Second)))
	require.Equal(t, map[string]string{
		"alertname": "UnlockerForcedUnlock", "severity": "warning", "job": "unlocker", "namespace": "e2e",
		"lock": w.lock, "hostname": w.hostname,
	}, forced.Labels)
	require.Equal(t, "Lock billing/invoices +ü of worker-1.example.org was force-unlocked", forced.Annotations["summary"])
	s.hook.await("UnlockerLockOverdue", w.lock, "resolved", died)
	s.etcd.awaitGone(w.lock + "/")
	require.Equal(t, []string{"UnlockerForcedUnlock", "UnlockerLockOverdue"}, s.hook.alerts(), "there must be no other alert")
	s.checkRules(t)
	for _, a := range readAlerts(t) {
		if link := a.Annotations["dashboard_url"]; !strings.Contains(link, "{{") {
			s.follow(t, link)
		}
	}
}

// follow gets the page of a link in an alert from a real replica.
func (s *stack) follow(t *testing.T, link string) (body string) {
	t.Helper()
	replica := "http://" + s.replicas[0].line(message.Started)["web"].(string)
	status, raw, err := s.get(strings.Replace(link, "http://unlocker.example.com", replica, 1))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%s\n%s", link, raw)
	return string(raw)
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
