package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// stream is a client of the event stream.
type stream struct {
	close func()
	ended chan struct{}
	err   error // of the connection, once the stream has ended

	mu     sync.Mutex
	id     string
	types  []string
	shown  map[string]api.Lock
	status api.Status
}

// follow opens a stream. With a client before it resumes what that one had.
func (d *daemon) follow(query string, before *stream) *stream {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.WebAddr()+"/api/v1/events?"+query, nil)
	require.NoError(d.t, err)
	s := &stream{ended: make(chan struct{}), shown: map[string]api.Lock{}}
	if before != nil {
		s.id, s.shown = before.id, before.shown
		req.Header.Set("Last-Event-ID", s.id)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req) //nolint:bodyclose // closed by the goroutine that reads it
	require.NoError(d.t, err)
	require.Equal(d.t, http.StatusOK, resp.StatusCode)
	require.Equal(d.t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(d.t, "no-store", resp.Header.Get("Cache-Control"))
	go func() {
		defer close(s.ended)
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 2*api.MaxPage)
		for lines.Scan() {
			s.line(lines.Text())
		}
		s.err = lines.Err()
	}()
	s.close = func() {
		cancel()
		<-s.ended
	}
	d.t.Cleanup(s.close)
	return s
}

func (s *stream) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, value, _ := strings.Cut(text, ": ")
	if key == "id" {
		s.id = value
	}
	var e api.Event
	if key != "data" || json.Unmarshal([]byte(value), &e) != nil {
		return
	}
	s.types = append(s.types, e.Type)
	switch e.Type {
	case api.EventReset:
		s.shown = map[string]api.Lock{}
		for _, l := range e.Locks {
			s.shown[l.Name] = l
		}
	case api.EventLock:
		s.shown[e.Name] = *e.Lock
	case api.EventGone:
		delete(s.shown, e.Name)
	case api.EventStatus:
		s.status = *e.Status
	}
}

// awaits waits until the stream shows a state of a lock; "" is none.
func (s *stream) awaits(t *testing.T, name, state string) api.Lock {
	t.Helper()
	var l api.Lock
	etcdtest.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		l = s.shown[name]
		return l.State == state
	}, "%s did not become %q", name, state)
	return l
}

func TestEventsFollowALockFromAcquisitionToRemoval(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Reaper.Grace = 8 * time.Second }) // so long it is expired
	d.awaitReaping()
	all, held := d.follow("", nil), d.follow("state=held&owner=billing", nil)
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("a", later, later, "owner", "billing", "status", "half \u202e done")...)
	shown := all.awaits(t, "a", "held")
	require.Equal(t, "half \u202e done", shown.Status)
	require.Empty(t, shown.Explanation)
	held.awaits(t, "a", "held")
	before := held
	held.close()
	e.Set("a", "alert_at", etcdtest.Stamp(time.Now()))
	require.NotEmpty(t, all.awaits(t, "a", "overdue").Explanation)
	held = d.follow("state=held&owner=billing", before)
	held.awaits(t, "a", "")
	held.close()
	require.NotContains(t, held.types, api.EventReset, "it resumed")
	e.Renew("a", time.Now(), time.Now())
	all.awaits(t, "a", "expired")
	all.awaits(t, "a", "")
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	etcdtest.Eventually(t, func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.status.Removed["expiry"] == 1 && all.status.Locks["held"] == 0
	})
}

// The stream shows what a page does, also when nothing but a hold changes.
func TestEventsShowWhatAPageShows(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) { c.Reaper.Grace, c.Reaper.Freshness = time.Minute, 2*time.Second })
	d.awaitReaping()
	putLocks(e, 20, time.Now().Add(-time.Second))
	s := d.follow("limit=10", nil)
	agrees := func(explained string, moves bool) func() bool {
		return func() bool {
			var page api.LockPage
			require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks?limit=10&sort=urgency", &page))
			s.mu.Lock()
			defer s.mu.Unlock()
			return page.Matched == 20 && len(s.shown) == 10 && !slices.ContainsFunc(page.Locks, func(l api.Lock) bool {
				shown := s.shown[l.Name]
				moved := shown.Due.Sub(l.Due).Abs()
				shown.Due = l.Due
				if moves && strings.Contains(shown.Explanation, explained) { // during an outage due moves with the time
					shown.Explanation, moved = l.Explanation, 0
				}
				return shown != l || moved > 200*time.Millisecond || !strings.Contains(l.Explanation, explained)
			})
		}
	}
	etcdtest.Eventually(t, agrees("waits until", false))
	proxy.Blackhole()
	etcdtest.Eventually(t, agrees("removals on hold", true))
}

// Streams would keep the server from ending for a second, after which it closes their connections.
func TestStopWithStreams(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	var all []*stream
	for range 20 {
		all = append(all, d.follow("", nil))
	}
	d.stop()
	for _, s := range all {
		<-s.ended
		require.NoError(t, s.err)
	}
	requireStops(t, d, before, func() { require.NoError(t, e.Close()) })
}
