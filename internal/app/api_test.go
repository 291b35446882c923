package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// getAPI decodes the answer of the API.
func (d *daemon) getAPI(path string, into any) (status int) {
	d.t.Helper()
	resp, err := d.http.Get("http://" + d.WebAddr() + path)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.NoError(d.t, json.NewDecoder(resp.Body).Decode(into))
	return resp.StatusCode
}

// webPage returns the page at a path, also that of a lock that is gone.
func (d *daemon) webPage(path string) string {
	d.t.Helper()
	resp, err := d.http.Get("http://" + d.WebAddr() + path)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	return string(body)
}

func TestAPIShowsALockFromAcquisitionToRemoval(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	alert, unlock := time.Now(), time.Now().Add(time.Hour)
	e.Put(e.Lock("billing/invoices", alert, unlock, "backtrace", "main.go:1", "ticket", "OPS-1")...)
	d.awaitMetric(1, "unlocker_locks", "state", "overdue")

	var page api.LockPage
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks?state=overdue,expired", &page))
	require.Len(t, page.Locks, 1)
	l := page.Locks[0]
	require.Equal(t, "billing/invoices", l.Name)
	require.Equal(t, "overdue", l.State)
	require.Equal(t, "worker-1", l.Hostname)
	require.WithinDuration(t, alert, l.AlertAt, time.Millisecond)
	drift := time.Until(unlock) / 2000
	due := unlock.Add(newConfig(nil).Reaper.Grace + drift)
	offset := time.Since(alert) // of the clock, as it was observed: at most what has passed since the lock was written
	require.WithinRange(t, l.Due, due.Add(-time.Millisecond), due.Add(time.Millisecond+offset))

	var detail api.LockDetail
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/billing%2Finvoices", &detail))
	require.Equal(t, l.Token, detail.Token)
	require.Contains(t, detail.Fields, api.Field{Name: "backtrace", Value: "main.go:1"})
	require.Contains(t, detail.Fields, api.Field{Name: "ticket", Value: "OPS-1"})
	require.Equal(t, verdict.Wait, detail.Verdict.Action)
	require.True(t, detail.Verdict.Measured)
	require.WithinDuration(t, l.Due, detail.Due, 200*time.Millisecond)

	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks?state=held", &page))
	require.Empty(t, page.Locks)

	e.Renew("billing/invoices", time.Now(), time.Now())
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	var none api.Error
	require.Equal(t, http.StatusNotFound, d.getAPI("/api/v1/locks/billing/invoices", &none))
	require.Equal(t, "no such lock", none.Error)
	var list api.ForcedList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/forced-unlocks?name=billing", &list))
	require.Empty(t, list.Forced)
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/forced-unlocks?name=billing/invoices", &list))
	require.Len(t, list.Forced, 1)
	require.Equal(t, "billing/invoices", list.Forced[0].Name)
	require.Equal(t, verdict.Expiry, list.Forced[0].Trigger)
	require.Contains(t, list.Forced[0].Fields, api.Field{Name: "ticket", Value: "OPS-1"})
	require.Equal(t, verdict.Remove, list.Forced[0].Verdict.Action)

	e.Put(e.Lock("billing/invoices", time.Now().Add(time.Hour), time.Now().Add(time.Hour))...)
	var h api.History
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/history?name=billing/invoices", &h))
	require.Len(t, h.Periods, 2)
	require.Nil(t, h.Periods[0].Ended)
	require.Equal(t, l.Token, h.Periods[1].Token)
	ended := h.Periods[1].Ended
	require.Equal(t, []string{api.EndExpired, api.Self}, []string{ended.How, ended.By})
	require.Equal(t, list.Forced[0].Revision, ended.Revision)
	require.Equal(t, list.Forced[0].At, ended.At)
}

// The API shows malformed locks, undated locks and orphans as they are in etcd.
func TestAPIShowsLocksThatAreNotHealthy(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	e.Put(clientv3.OpPut(prefix+"bad/uuid", "u"), clientv3.OpPut(prefix+"bad/auto_unlock_at", "soon"),
		clientv3.OpPut(prefix+"orphan/alert_at", etcdtest.Stamp(time.Now())),
		clientv3.OpPut(prefix+"native/1234abcd", ""),
		clientv3.OpPut(prefix+"undated/uuid", "u"))
	for state, n := range map[string]float64{"malformed": 2, "orphaned": 1, "undated": 1} {
		d.awaitMetric(n, "unlocker_locks", "state", state)
	}
	for name, want := range map[string]string{"bad": "malformed", "orphan": "orphaned", "native": "malformed", "undated": "undated"} {
		var detail api.LockDetail
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/"+name, &detail))
		require.Equal(t, want, detail.State, name)
		if want == "orphaned" {
			require.Equal(t, verdict.Wait, detail.Verdict.Action)
			require.WithinDuration(t, time.Now().Add(time.Minute), detail.Due, 30*time.Second)
		} else {
			require.Equal(t, verdict.Leave, detail.Verdict.Action, name)
			require.Zero(t, detail.Due)
		}
	}
}

// A page of locks with long names, which are longer as JSON, ends before its limit, and the next
// follows. The window of a stream ends there, too.
func TestAPIPagesOfLongNames(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	const n = 60
	var want, got []string
	for i := range n {
		want = append(want, fmt.Sprintf("%02d%s", i, strings.Repeat("\x01", 4000)))
		e.Put(clientv3.OpPut(prefix+want[i]+"/uuid", "u"))
	}
	d.awaitMetric(n, "unlocker_locks")
	after, pages := "", 0
	for ; pages == 0 || after != ""; pages++ {
		require.Less(t, pages, n)
		var page api.LockPage
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks?limit=1000&after="+after, &page))
		require.Equal(t, n, page.Matched)
		for _, l := range page.Locks {
			got = append(got, l.Name)
		}
		after = page.Next
	}
	require.Equal(t, want, got)
	require.Equal(t, 1+n*6*4000/api.MaxPage, pages)

	stream := d.follow("limit=1000", nil)
	etcdtest.Eventually(t, func() bool {
		stream.mu.Lock()
		defer stream.mu.Unlock()
		return len(stream.shown) > 0
	})
	stream.mu.Lock()
	defer stream.mu.Unlock()
	require.LessOrEqual(t, len(stream.shown), api.MaxPage/(6*4000), "its window is a page")
}

func TestAPIPages(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Web.PathPrefix = "/unlocker" })
	d.awaitReady()
	const n = 25
	putLocks(e, n, time.Now().Add(time.Hour))
	e.Put(clientv3.OpPut(prefix+"\xff/uuid", "u"), clientv3.OpPut(prefix+"\xfe/uuid", "u"))
	d.awaitMetric(n+2, "unlocker_locks")
	for _, order := range []string{"name", "urgency"} {
		var names, urgencies []string
		after := ""
		for pages := 0; pages == 0 || after != ""; pages++ {
			require.Less(t, pages, n)
			var page api.LockPage
			require.Equal(t, http.StatusOK, d.getAPI("/unlocker/api/v1/locks?limit=4&sort="+order+"&after="+after, &page))
			require.LessOrEqual(t, len(page.Locks), 4)
			require.Equal(t, n+2, page.Matched)
			for _, l := range page.Locks {
				names, urgencies = append(names, l.Name), append(urgencies, l.Urgency)
			}
			after = page.Next
		}
		require.Len(t, names, n+2) // those that are not UTF-8 are undated, and come first in both orders
		for i := range n {
			require.Equal(t, fmt.Sprintf("many/%05d", i), names[i+2])
		}
		require.True(t, slices.IsSorted(urgencies), urgencies)
		require.Equal(t, order == "urgency", urgencies[0] != "")
	}
	for _, after := range []string{"!", "YQ"} {
		var failure api.Error
		require.Equal(t, http.StatusBadRequest, d.getAPI("/unlocker/api/v1/locks?sort=urgency&after="+after, &failure))
		require.Contains(t, failure.Error, "is not the value of a next")
	}
	var page api.LockPage
	require.Equal(t, http.StatusOK, d.getAPI("/unlocker/api/v1/locks?q=/0000&hostname=worker-1", &page))
	require.Len(t, page.Locks, 10)
	require.Equal(t, http.StatusOK, d.getAPI("/unlocker/api/v1/locks?owner=nobody", &page))
	require.Empty(t, page.Locks)
	require.Zero(t, page.Matched)
}

func TestAPIStatus(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Reaper.Mode = "dry-run" })
	d.awaitReady()
	putLocks(e, 3, time.Now().Add(time.Hour))
	d.awaitMetric(3, "unlocker_locks", "state", "held")
	d.awaitMetric(1, "unlocker_leader")
	d.awaitMetric(1, "unlocker_reaper_hold")
	var s api.Status
	etcdtest.Eventually(t, func() bool { // not while a probe takes long
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &s))
		return s.Etcd.Up
	})
	require.True(t, s.Ready)
	require.True(t, s.Leads)
	require.Equal(t, s.Identity, s.Leader)
	require.NotEmpty(t, s.Identity)
	require.WithinDuration(t, time.Now(), s.Started, etcdtest.Soon)
	require.WithinDuration(t, time.Now(), s.Etcd.Probed, etcdtest.Soon)
	require.Empty(t, s.Etcd.Certificates)
	require.Equal(t, "dry-run", s.Mode)
	require.Equal(t, map[string]int{"held": 3, "overdue": 0, "expired": 0, "undated": 0, "malformed": 0, "orphaned": 0}, s.Locks)
	require.Len(t, s.Holds, 1)
	require.Equal(t, verdict.HoldDryRun, s.Holds[0].Hold)
	require.NotEmpty(t, s.Holds[0].Reason)
	require.WithinDuration(t, time.Now(), s.Holds[0].Since, etcdtest.Soon)
	require.Empty(t, s.Etcd.Alarms)
	require.Equal(t, 1, s.Clock.Hosts)
	require.Equal(t, map[verdict.Trigger]uint64{"expiry": 0, "orphan": 0, "manual": 0, "presumed": 0}, s.Removed)

	e.Kill(0)
	d.awaitMetric(0, "unlocker_etcd_up")
	etcdtest.Eventually(t, func() bool {
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &s), "the status must be available while etcd is down")
		return !s.Etcd.Up && s.Etcd.Error != "" && len(s.Holds) == 2 && s.Holds[0].Hold == "disconnected"
	})
	var failure api.Error
	require.GreaterOrEqual(t, d.getAPI("/api/v1/locks/many/00001", &failure), 500)
	require.NotEmpty(t, failure.Error)
	var page api.LockPage
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks", &page), "the list does not need etcd")
	require.Len(t, page.Locks, 3)
}

func TestWebListenerCanBeDisabled(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nowhere, func(c *config.Config) { c.Web.Listen = "" })
	require.Empty(t, d.WebAddr())
}

func TestAPIStatusHasCertificates(t *testing.T) {
	t.Parallel()
	w := newWebFiles(t, "")
	d := startDaemon(t, nowhere, func(c *config.Config) { c.Etcd.TLS.CAFile = filepath.Join(w.dir, "cert.pem") })
	var s api.Status
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &s))
	require.Len(t, s.Etcd.Certificates, 1)
	require.Equal(t, "etcd_ca", s.Etcd.Certificates[0].Name)
	require.WithinDuration(t, time.Now().Add(time.Hour), s.Etcd.Certificates[0].Expires, etcdtest.Soon)
	require.Zero(t, s.Etcd.Probed)
}

// A holder that renews at the last moment is found before it loses its lock; one that renews in time is not.
func TestAPIShowsNearMisses(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	var status api.Status
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
	require.Equal(t, []api.NearMiss{}, status.NearMisses)

	start := time.Now()
	unlock := start.Add(time.Hour)
	for _, name := range []string{"healthy", "late", "never/renewed"} {
		e.Put(e.Lock(name, unlock, unlock, "owner", "billing")...)
	}
	e.Renew("healthy", start, unlock)
	e.Renew("late", start, unlock)
	e.Renew("healthy", start.Add(30*time.Minute), unlock.Add(time.Hour)) // by the holder's clock, half an hour later
	e.Renew("late", start.Add(57*time.Minute), unlock.Add(time.Hour))
	d.awaitMetric(4, "unlocker_renewal_margin_ratio")
	_, exposition := d.get("/metrics")
	require.Contains(t, exposition, "unlocker_renewal_margin_ratio_bucket{le=\"0.1\"} 1\n")

	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
	require.Len(t, status.NearMisses, 1)
	miss := status.NearMisses[0]
	require.WithinRange(t, miss.At, start, time.Now())
	miss.At = time.Time{}
	require.Equal(t, api.NearMiss{Name: "late", Hostname: "worker-1", Owner: "billing", Margin: .052, Renewals: 1}, miss)

	var page api.LockPage
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks", &page))
	require.Len(t, page.Locks, 3)
	half, little := .5, .052
	for i, want := range []*float64{&half, &little, nil} {
		require.Equal(t, want, page.Locks[i].Margin, page.Locks[i].Name)
		var detail api.LockDetail
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/"+page.Locks[i].Name, &detail))
		require.Equal(t, want, detail.Margin, page.Locks[i].Name)
	}
}

// Whether holders are alive, a replica that does not see the locks does not say.
func TestAPIShowsTheRhythmOfRenewals(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	unlock := time.Now().Add(time.Hour)
	e.Put(e.Lock("a", unlock, unlock)...)
	e.Put(e.Lock("b", unlock, unlock)...)
	locks := func(query string) (page api.LockPage) {
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks"+query, &page))
		return page
	}
	etcdtest.Eventually(t, func() bool {
		e.Renew("a", time.Now(), unlock)
		all := locks("").Locks
		return len(all) > 0 && all[0].Rhythm != nil
	})
	var detail api.LockDetail
	etcdtest.Eventually(t, func() bool {
		var silent api.LockPage
		return d.getAPI("/api/v1/locks?silent=true", &silent) == http.StatusOK && silent.Matched == 1
	})
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/a", &detail))
	require.True(t, detail.Silent())
	require.WithinRange(t, detail.RenewedAt, unlock.Add(-time.Hour), time.Now())
	require.Nil(t, locks("").Locks[1].Rhythm)

	e.Kill(0)
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	require.Nil(t, locks("").Locks[0].Rhythm)
	var refused api.Error
	require.Equal(t, http.StatusServiceUnavailable, d.getAPI("/api/v1/locks?silent=true", &refused), "no locks would be taken for no silent holders")
	require.Contains(t, refused.Error, "which holders are silent is not known")
}
