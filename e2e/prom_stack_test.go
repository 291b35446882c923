//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// monitor is a Prometheus and an Alertmanager with the shipped configuration.
type monitor struct {
	t            *testing.T
	prometheus   string
	alertmanager string
	hook         *webhook
}

// stack is two replicas of unlocker, an etcd with TLS, and a monitor with short intervals.
type stack struct {
	*monitor
	etcd     *lockedEtcd
	replicas []*daemon
}

// interval is the interval in which the Prometheus of a stack scrapes and evaluates.
const interval = 500 * time.Millisecond

// fast replaces the shipped intervals.
func fast(config string) string {
	for name, value := range map[string]string{"group_wait": "100ms", "group_interval": "1s", "((scrape|evaluation)_)?interval": interval.String()} {
		config = regexp.MustCompile(`\b(`+name+`): \w+`).ReplaceAllString(config, "$1: "+value)
	}
	return config
}

func startStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{etcd: startLockedEtcd(t, newest)}
	cert, key := s.etcd.issue(t, "unlocker")
	for range 2 {
		s.replicas = append(s.replicas, startDaemon(t, s.etcd.addr, "--resync-interval", "5s", "--reaper-standby-delay", "1s", "--reaper-orphan-grace", "2s", "--native-prefixes", "/locks/",
			"--etcd-tls-ca-file", s.etcd.ca, "--etcd-tls-cert-file", cert, "--etcd-tls-key-file", key))
	}
	s.monitor = startMonitor(t, fast, map[string][]*daemon{"e2e": s.replicas})
	require.Eventually(t, func() bool {
		return len(s.query(`unlocker:replica_sees_etcd:bool == 1`)) == len(s.replicas)
	}, soon, poll)
	return s
}

// startMonitor runs the programs with the shipped rules, routes and intervals, after adapt has
// changed the latter. It scrapes the replicas of each namespace.
func startMonitor(t *testing.T, adapt func(string) string, replicas map[string][]*daemon) *monitor {
	t.Helper()
	prometheus, alertmanager := program(t, "prometheus"), program(t, "prometheus-alertmanager")
	m := &monitor{t: t, hook: newWebhook(t)}
	notified := etcdtest.FreeAddr(t)
	routes := m.adapted("alertmanager.example.yaml", adapt, "http://127.0.0.1:9099", m.hook.URL)
	start(t, alertmanager, "--config.file", routes, "--storage.path", t.TempDir(),
		"--web.listen-address", notified, "--cluster.listen-address=", "--log.level=warn")
	m.alertmanager = "http://" + notified
	m.awaitReady(m.alertmanager)

	var targets []string
	for namespace, all := range replicas {
		for _, d := range all {
			targets = append(targets, fmt.Sprintf("{targets: [%q], labels: {namespace: %s}}", strings.TrimPrefix(d.base, "http://"), namespace))
		}
	}
	config := m.adapted("prometheus.example.yaml", adapt, "127.0.0.1:9093", notified, "unlocker.rules.yaml", m.adapted("unlocker.rules.yaml", adapt),
		`{targets: ["unlocker-1.example.com:9480", "unlocker-2.example.com:9480"]}`, strings.Join(targets, ", "))
	addr := etcdtest.FreeAddr(t)
	m.prometheus = "http://" + addr
	start(t, prometheus, "--config.file", config, "--storage.tsdb.path", t.TempDir(), "--web.listen-address", addr, "--log.level=warn")
	m.awaitReady(m.prometheus)
	return m
}

// adapted writes a shipped file with its addresses replaced, and returns its path.
func (m *monitor) adapted(name string, adapt func(string) string, addresses ...string) (path string) {
	m.t.Helper()
	shipped, err := os.ReadFile("../deploy/prometheus/" + name)
	require.NoError(m.t, err)
	for old := range slices.Chunk(addresses, 2) {
		require.Contains(m.t, string(shipped), old[0])
	}
	path = filepath.Join(m.t.TempDir(), name)
	require.NoError(m.t, os.WriteFile(path, []byte(strings.NewReplacer(addresses...).Replace(adapt(string(shipped)))), 0o600))
	return path
}

func (m *monitor) awaitReady(base string) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		status, _, err := m.get(base + "/-/ready")
		return err == nil && status == http.StatusOK
	}, soon, poll, "%s is not ready", base)
}

func (m *monitor) get(url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, url, nil)
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
		clientv3.OpPut(w.key("owner"), w.owner), clientv3.OpPut(w.key("locked_at"), w.stamp(now)), clientv3.OpDelete(w.ticket()))
}

// wait puts a ticket, until acquire, of a process that holds the locks with these uuids.
func (w *worker) wait(holds ...string) {
	w.etcd.t.Helper()
	ticket := protocol.Ticket{UUID: "uuid of " + w.lock + " of " + w.hostname, Holds: holds}
	_, err := w.etcd.client.Put(w.etcd.t.Context(), w.ticket(), ticket.Value())
	require.NoError(w.etcd.t, err)
}

func (w *worker) ticket() string { return "/unlocker/waiters" + prefix + w.lock + "//" + w.hostname }

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
