package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// daemon answers as one that knows these locks, in pages of one.
type daemon struct {
	prefix string
	locks  []api.Lock
	asked  []string
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.asked = append(d.asked, r.URL.RequestURI())
	var body any
	switch r.URL.Path {
	case "/api/v1/status":
		s := api.Status{Now: time.Now(), Prefix: d.prefix, Locks: map[string]int{}}
		for _, state := range api.States() {
			s.Locks[state] = 0
		}
		body = s
	case "/api/v1/locks":
		page := api.LockPage{Locks: []api.Lock{}}
		for _, l := range d.locks {
			if l.Name > r.URL.Query().Get("after") {
				page.Locks, page.Next = []api.Lock{l}, l.Name
				break
			}
		}
		body = page
	default:
		for _, l := range d.locks {
			if r.URL.Path == "/api/v1/locks/"+l.Name {
				body = api.LockDetail{Lock: l, Verdict: &verdict.Verdict{Action: verdict.Wait}}
			}
		}
	}
	if body == nil {
		w.WriteHeader(http.StatusNotFound)
		body = api.Error{Error: "no such lock"}
	}
	_ = json.NewEncoder(w).Encode(body)
}

// explain calls one of the methods Explain with the daemon.
func (d *daemon) explain(t *testing.T, explain func(context.Context, client.Daemon) error) (err error) {
	t.Helper()
	server := httptest.NewServer(d)
	defer server.Close()
	c, err := client.New(client.Options{URLs: []string{server.URL}, Timeout: time.Minute})
	require.NoError(t, err)
	c.Each(t.Context(), func(ctx context.Context, _ int, from client.Daemon) { err = explain(ctx, from) })
	return err
}

func TestExplainOneLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("a/b", -time.Hour, -time.Minute)
	seen := w.show("a/b").Lock
	seen.Explanation, seen.Due = "waits until 10:23:26: it was learned late, patience 1m0s", time.Now().UTC()
	d := w.show("a/b")
	require.NoError(t, (&daemon{locks: []api.Lock{seen}}).explain(t, d.Explain))
	require.Equal(t, seen.Explanation, d.Explanation)
	require.Equal(t, seen.Due, d.Due)
	require.Equal(t, verdict.Wait, d.Verdict.Action)
	require.Regexp(t, "^http://127.0.0.1:", d.ExplainedBy)

	require.Equal(t, []string{"According to the clock of the daemon, it is past its auto_unlock_at."}, d.Outlook)

	for _, c := range []struct {
		state  string
		offset float64
		want   []string
	}{
		{"held", 0, nil},
		{"held", -90, []string{"According to the clock of its holder, which is 1m30s slow, it is neither overdue nor expired."}},
		{"overdue", 30, []string{"According to the clock of its holder, which is 30s fast, it is past its alert_at."}},
		{"expired", -3600, []string{"According to the clock of its holder, which is 1h00m slow, it is past its auto_unlock_at."}},
		{"undated", 0, w.show("a/b").Outlook}, // not by a clock: what follows from the lock stays
	} {
		d, seen := w.show("a/b"), seen
		seen.State, seen.ClockOffset = c.state, c.offset
		require.NoError(t, (&daemon{locks: []api.Lock{seen}}).explain(t, d.Explain))
		require.Equal(t, c.state, d.State)
		require.Equal(t, c.want, d.Outlook)
	}

	later := seen
	later.Token++
	for words, locks := range map[string][]api.Lock{
		`no explanation: http://\S+ sees no such lock: `:                    nil,
		`no explanation: http://\S+ sees another acquisition of the lock: `: {later},
	} {
		d := w.show("a/b")
		require.Regexp(t, "^"+words, (&daemon{locks: locks}).explain(t, d.Explain).Error())
		require.Empty(t, d.Explanation)
		require.Equal(t, w.show("a/b").LockDetail, d.LockDetail)
	}
}

func TestExplainAListing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var seen []api.Lock
	for _, name := range []string{"a", "b", "c", "d"} {
		w.take(name, -time.Hour, -time.Minute)
		l := w.show(name).Lock
		l.Explanation = name + " waits"
		seen = append(seen, l)
	}
	seen[1].UUID = "of an earlier holder"
	seen[2].State, seen[2].ClockOffset = "overdue", -30 // according to the clock of its holder
	l, _ := w.list(admin.Filter{})
	d := &daemon{prefix: "/mutexes/", locks: seen[:3]}
	require.NoError(t, d.explain(t, l.Explain))
	var got []string
	for k := range l.Locks() {
		got = append(got, k.Explanation)
		if k.Name == "c" {
			require.Equal(t, "overdue", k.State)
			require.InDelta(t, -30, k.ClockOffset, 0)
		}
	}
	require.Equal(t, []string{"a waits", "", "c waits", ""}, got)
	const all = "limit=1000&sort=urgency"
	require.Equal(t, []string{"/api/v1/locks?" + all, "/api/v1/locks?after=a&" + all, "/api/v1/locks?after=b&" + all, "/api/v1/locks?after=c&" + all}, d.asked)

	require.Regexp(t, "^no explanation: http://.* watches /other/, not /mutexes/$", (&daemon{prefix: "/other/"}).explain(t, w.Observe))
}

// A daemon reads all its locks for each page.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := &daemon{prefix: "/mutexes/"}
	for i := range 20 {
		d.locks = append(d.locks, api.Lock{Name: fmt.Sprintf("%02d", i), State: "overdue"})
	}
	l, _ := w.list(admin.Filter{})
	require.ErrorContains(t, d.explain(t, l.Explain), "more than 10000 such locks")
	require.Len(t, d.asked, 10)
	for i := range d.locks {
		d.locks[i].State = "held" // of which some may be left out
	}
	require.NoError(t, d.explain(t, l.Explain))
	require.ErrorContains(t, d.explain(t, new(admin.Filter).OnlySilent), "more than 10000 such locks")
}

// Those are the locks that the daemon knows as such, unless they were renewed or taken since.
func TestListOfSilentHolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := &daemon{prefix: "/mutexes/"}
	for _, name := range []string{"a", "renewed", "taken", "alive"} {
		w.take(name, time.Hour, time.Hour)
		d.locks = append(d.locks, w.show(name).Lock)
	}
	d.locks[1].AutoUnlockAt, d.locks[2].Token, d.locks = d.locks[1].AutoUnlockAt.Add(-time.Second), d.locks[2].Token-1, d.locks[:3]
	var f admin.Filter
	require.NoError(t, d.explain(t, f.OnlySilent))
	l, _ := w.list(f)
	require.Equal(t, 1, l.Len())
	require.Equal(t, "a", slices.Collect(l.Locks())[0].Name)
	require.Equal(t, "/api/v1/locks?limit=1000&silent=true", d.asked[0])
}
