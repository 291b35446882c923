//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// webhook receives what Alertmanager sends.
type webhook struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	sent     int
	received []notice
}

// notice is one alert in a message of Alertmanager.
type notice struct {
	Status              string
	Labels, Annotations map[string]string
	// receiver is the path to which it was sent, message the number of the message, and at the
	// time when it was received.
	receiver string
	message  int
	at       time.Time
}

func newWebhook(t *testing.T) *webhook {
	h := &webhook{t: t}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

// ServeHTTP implements http.Handler.
func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var message struct{ Alerts []notice }
	if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent++
	for _, n := range message.Alerts {
		n.receiver, n.message, n.at = r.URL.Path, h.sent, time.Now()
		h.received = append(h.received, n)
	}
}

// first returns the first notice of the alert with this lock and status after since.
func (h *webhook) first(alert, lock, status string, since time.Time) (found notice, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.received, func(n notice) bool {
		return n.Labels["alertname"] == alert && n.Labels["lock"] == lock && n.Status == status && n.at.After(since)
	})
	if i < 0 {
		return notice{}, false
	}
	return h.received[i], true
}

func (h *webhook) await(alert, lock, status string, since time.Time) (found notice) {
	h.t.Helper()
	require.Eventually(h.t, func() (ok bool) {
		found, ok = h.first(alert, lock, status, since)
		return ok
	}, soon, poll, "%s of %s is not %s", alert, lock, status)
	return found
}

// firing returns when the alert on each lock of the namespace was first received as firing.
func (h *webhook) firing(alert, namespace string) map[string]time.Time {
	found := map[string]time.Time{}
	for _, n := range h.about(alert, namespace) {
		if _, ok := found[n.Labels["lock"]]; !ok {
			found[n.Labels["lock"]] = n.at
		}
	}
	return found
}

// messages returns the numbers of the messages in which the alert is firing.
func (h *webhook) messages(alert, namespace string) map[int]bool {
	found := map[int]bool{}
	for _, n := range h.about(alert, namespace) {
		found[n.message] = true
	}
	return found
}

func (h *webhook) about(alert, namespace string) (found []notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.received {
		if n.Labels["alertname"] == alert && n.Labels["namespace"] == namespace && n.Status == "firing" {
			found = append(found, n)
		}
	}
	return found
}

// requireOnce requires that each of so many locks is in one message, and that none says that it is over.
func (h *webhook) requireOnce(alert, namespace string, locks int) {
	h.t.Helper()
	told := h.about(alert, namespace)
	h.t.Logf("%s of %s: %d locks are told of %d times in %d messages", alert, namespace, locks, len(told), len(h.messages(alert, namespace)))
	require.Len(h.t, h.firing(alert, namespace), locks)
	require.Len(h.t, told, locks)
	h.mu.Lock()
	defer h.mu.Unlock()
	require.False(h.t, slices.ContainsFunc(h.received, func(n notice) bool { return n.Labels["alertname"] == alert && n.Status == "resolved" }))
}

// alerts returns the names of all alerts that were received.
func (h *webhook) alerts() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.received {
		names = append(names, n.Labels["alertname"])
	}
	slices.Sort(names)
	return slices.Compact(names)
}
