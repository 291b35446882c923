package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
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
	resp, err := d.http.Get("http://" + d.WebAddr().String() + path)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.NoError(d.t, json.NewDecoder(resp.Body).Decode(into))
	return resp.StatusCode
}

func TestAPIShowsALockFromAcquisitionToRemoval(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	alert, unlock := time.Now(), time.Now().Add(5*time.Second)
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
	require.WithinDuration(t, unlock.Add(time.Second), l.Due, time.Second) // the grace, and the observed offset of the clock
	require.False(t, l.Due.Before(unlock))

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
	require.Equal(t, "expiry", list.Forced[0].Trigger)
	require.Contains(t, list.Forced[0].Fields, api.Field{Name: "ticket", Value: "OPS-1"})
	require.Equal(t, verdict.Remove, list.Forced[0].Verdict.Action)
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

func TestAPIPages(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Web.PathPrefix = "/unlocker" })
	d.awaitReady()
	const n = 25
	putLocks(e, n, time.Now().Add(time.Hour))
	e.Put(clientv3.OpPut(prefix+"\xff/uuid", "u"), clientv3.OpPut(prefix+"\xfe/uuid", "u"))
	d.awaitMetric(n+2, "unlocker_locks")
	var names []string
	after := ""
	for pages := 0; pages == 0 || after != ""; pages++ {
		require.Less(t, pages, n)
		var page api.LockPage
		require.Equal(t, http.StatusOK, d.getAPI("/unlocker/api/v1/locks?limit=4&after="+after, &page))
		require.LessOrEqual(t, len(page.Locks), 4)
		for _, l := range page.Locks {
			names = append(names, l.Name)
		}
		after = page.Next
	}
	require.Len(t, names, n+2)
	for i := range n {
		require.Equal(t, fmt.Sprintf("many/%05d", i), names[i+2])
	}
	var page api.LockPage
	require.Equal(t, http.StatusOK, d.getAPI("/unlocker/api/v1/locks?q=/0000&hostname=worker-1", &page))
	require.Len(t, page.Locks, 10)
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
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &s))
	require.True(t, s.Ready)
	require.True(t, s.Leads)
	require.Equal(t, s.Identity, s.Leader)
	require.NotEmpty(t, s.Identity)
	require.Equal(t, "dry-run", s.Mode)
	require.Equal(t, map[string]int{"held": 3, "overdue": 0, "expired": 0, "undated": 0, "malformed": 0, "orphaned": 0}, s.Locks)
	require.Len(t, s.Holds, 1)
	require.Equal(t, "dry_run", s.Holds[0].Hold)
	require.NotEmpty(t, s.Holds[0].Reason)
	require.WithinDuration(t, time.Now(), s.Holds[0].Since, etcdtest.Soon)
	require.True(t, s.Etcd.Up)
	require.Empty(t, s.Etcd.Alarms)
	require.Equal(t, 1, s.Clock.Hosts)
	require.Equal(t, map[string]uint64{"expiry": 0, "orphan": 0, "manual": 0}, s.Removed)

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
	require.Nil(t, d.WebAddr())
}
