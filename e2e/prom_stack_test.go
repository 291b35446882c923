//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// stack is two replicas of unlocker, an etcd with TLS, a Prometheus with the shipped rules,
// and an Alertmanager with the shipped routes.
type stack struct {
	t          *testing.T
	etcd       *lockedEtcd
	replicas   []*daemon
	prometheus string
	hook       *webhook
}

// interval is the interval in which Prometheus scrapes and evaluates.
const interval = 500 * time.Millisecond

func startStack(t *testing.T) *stack {
	t.Helper()
	prometheus, alertmanager := program(t, "prometheus"), program(t, "prometheus-alertmanager")
	s := &stack{t: t, etcd: startLockedEtcd(t, newest), hook: newWebhook(t)}
	cert, key := s.etcd.issue(t, "unlocker")
	for range 2 {
		s.replicas = append(s.replicas, startDaemon(t, s.etcd.addr, "--resync-interval", "5s", "--reaper-standby-delay", "1s",
			"--etcd-tls-ca-file", s.etcd.ca, "--etcd-tls-cert-file", cert, "--etcd-tls-key-file", key))
	}
	notified := s.startAlertmanager(alertmanager)
	s.startPrometheus(prometheus, notified)
	require.Eventually(t, func() bool {
		return len(s.query(`unlocker:replica_sees_etcd:bool == 1`)) == len(s.replicas)
	}, soon, poll)
	return s
}

// startAlertmanager runs an Alertmanager with the shipped configuration, except for the
// address of the receivers and shorter waits.
func (s *stack) startAlertmanager(path string) (addr string) {
	s.t.Helper()
	shipped, err := os.ReadFile("../deploy/prometheus/alertmanager.example.yaml")
	require.NoError(s.t, err)
	config := strings.ReplaceAll(string(shipped), "http://127.0.0.1:9099", s.hook.URL)
	config = regexp.MustCompile(`(group_wait): \w+`).ReplaceAllString(config, "$1: 100ms")
	config = regexp.MustCompile(`(group_interval): \w+`).ReplaceAllString(config, "$1: 1s")
	addr = freeAddr(s.t)
	start(s.t, path, "--config.file", s.write("alertmanager.yaml", config), "--storage.path", s.t.TempDir(),
		"--web.listen-address", addr, "--cluster.listen-address=", "--log.level=warn")
	s.awaitReady("http://" + addr)
	return addr
}

// startPrometheus runs a Prometheus with the shipped file of rules.
func (s *stack) startPrometheus(path, alertmanager string) {
	s.t.Helper()
	rules, err := filepath.Abs("../deploy/prometheus/unlocker.rules.yaml")
	require.NoError(s.t, err)
	var targets []string
	for _, d := range s.replicas {
		targets = append(targets, strconv.Quote(strings.TrimPrefix(d.base, "http://")))
	}
	config := fmt.Sprintf(`
global: {scrape_interval: %[1]s, evaluation_interval: %[1]s}
rule_files: [%[2]q]
alerting: {alertmanagers: [{static_configs: [{targets: [%[3]q]}]}]}
scrape_configs:
  - job_name: unlocker
    static_configs: [{targets: [%[4]s], labels: {namespace: e2e}}]
`, interval, rules, alertmanager, strings.Join(targets, ", "))
	addr := freeAddr(s.t)
	s.prometheus = "http://" + addr
	start(s.t, path, "--config.file", s.write("prometheus.yaml", config), "--storage.tsdb.path", s.t.TempDir(),
		"--web.listen-address", addr, "--log.level=warn")
	s.awaitReady(s.prometheus)
}

func (s *stack) write(name, content string) (path string) {
	s.t.Helper()
	path = filepath.Join(s.t.TempDir(), name)
	require.NoError(s.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func (s *stack) awaitReady(base string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		status, _, err := s.get(base + "/-/ready")
		return err == nil && status == http.StatusOK
	}, soon, poll, "%s is not ready", base)
}

func (s *stack) get(url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// worker is the holder of a lock, with its own clock.
type worker struct {
	etcd                         *server
	lock, hostname, owner, token string
	// offset is how far its clock is ahead.
	offset time.Duration
}

func (w *worker) stamp(at time.Time) string {
	return strconv.FormatFloat(float64(at.Add(w.offset).UnixMilli())/1000, 'f', 3, 64)
}

// acquire acquires the lock, with its alert_at and auto_unlock_at after these durations.
func (w *worker) acquire(alert, unlock time.Duration) (alertAt time.Time) {
	w.etcd.t.Helper()
	w.token = "uuid of " + w.lock + " of " + w.hostname
	now := time.Now()
	return w.commit(now, now.Add(alert), now.Add(unlock), clientv3.Compare(clientv3.Version(w.key("uuid")), "=", 0),
		clientv3.OpPut(w.key("uuid"), w.token), clientv3.OpPut(w.key("hostname"), w.hostname),
		clientv3.OpPut(w.key("owner"), w.owner), clientv3.OpPut(w.key("locked_at"), w.stamp(now)))
}

// renew renews the lock, with its alert_at and auto_unlock_at after these durations.
func (w *worker) renew(alert, unlock time.Duration) (alertAt time.Time) {
	w.etcd.t.Helper()
	now := time.Now()
	return w.commit(now, now.Add(alert), now.Add(unlock), clientv3.Compare(clientv3.Value(w.key("uuid")), "=", w.token))
}

func (w *worker) commit(now, alertAt, unlockAt time.Time, condition clientv3.Cmp, ops ...clientv3.Op) time.Time {
	w.etcd.t.Helper()
	resp, err := w.etcd.client.Txn(w.etcd.t.Context()).If(condition).Then(append(ops, clientv3.OpPut(w.key("alert_at"), w.stamp(alertAt)),
		clientv3.OpPut(w.key("auto_unlock_at"), w.stamp(unlockAt)), clientv3.OpPut(w.key("alive_at"), w.stamp(now)))...).Commit()
	require.NoError(w.etcd.t, err)
	require.True(w.etcd.t, resp.Succeeded)
	return alertAt
}

func (w *worker) key(field string) string { return prefix + w.lock + "/" + field }
