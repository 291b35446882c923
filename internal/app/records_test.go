package app_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// auditPrefix is the default for prefix.
const auditPrefix = "/unlocker/audit" + prefix

// forced returns what the link of the alert leads to.
func (d *daemon) forced(name string) []api.Forced {
	d.t.Helper()
	var list api.ForcedList
	require.Equal(d.t, http.StatusOK, d.getAPI("/api/v1/forced-unlocks?name="+url.QueryEscape(name), &list))
	return list.Forced
}

// saysOfRemovals returns what the pages say of who removed a lock, and why. The history above it is there if etcd answers
// in time.
func (d *daemon) saysOfRemovals(name string) (said string) {
	d.t.Helper()
	for _, path := range []string{"/locks/" + name, "/forced", "/forced?name=" + name} {
		found := regexp.MustCompile(`Removed by .*?</p>`).FindAllString(d.webPage(path), -1)
		require.NotEmpty(d.t, found, path)
		said += strings.Join(found, "\n") + "\n"
	}
	return said
}

// unlock is what unlocker unlock does.
func unlock(t *testing.T, e *etcdtest.Etcd, name, reason string) {
	t.Helper()
	c := newConfig(e.Endpoints())
	a, err := admin.Open(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	_, err = a.Unlock(t.Context(), name, "u-"+name, reason, func(_ admin.Detail, unrecorded error) error { return unrecorded })
	require.NoError(t, err)
}

// Every replica logs, counts and shows a manual unlock once, with who and why. One that starts
// later shows it.
func TestS7_ManualUnlocksLeaveATraceInEveryReplica(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	off := func(c *config.Config) { c.Reaper.Mode = "off" } // or it would remove what is past its deadline
	replicas := []*daemon{startDaemon(t, e.Endpoints(), off), startDaemon(t, []string{proxy.Addr()}, off)}
	later := time.Now().Add(time.Hour)
	e.Put(append(e.Lock("a/b", later, later, "ticket", "OPS-1"), e.Lock("late", time.Now(), time.Now().Add(-time.Hour))...)...)
	for _, d := range replicas {
		d.awaitReady()
		d.awaitMetric(2, "unlocker_locks")
	}
	unlock(t, e, "a/b", "OPS-1: worker-1 was replaced")
	unlock(t, e, "late", "") // past its deadline: what the watch shows is not listed a second time
	for _, d := range replicas {
		d.awaitMetric(2, "unlocker_forced_unlocks_total", "trigger", "manual")
		lines := d.log.Lines(api.LogUnlocked)
		require.Len(t, lines, 2)
		require.Equal(t, []any{"a/b", "u-a/b", admin.Who(), "OPS-1: worker-1 was replaced", "INFO"},
			[]any{lines[0]["lock"], lines[0]["uuid"], lines[0]["who"], lines[0]["reason"], lines[0]["level"]})
		require.Equal(t, "OPS-1", lines[0]["record"].(map[string]any)["ticket"])
		d.awaitMetric(2, "unlocker_lock_releases_total", "by", "other")
		require.Len(t, d.forced("late"), 1)
		shown := d.forced("a/b")
		require.Len(t, shown, 1)
		require.Contains(t, shown[0].Fields, api.Field{Name: "ticket", Value: "OPS-1"})
		require.Equal(t, api.Forced{
			At: shown[0].At, Name: "a/b", UUID: "u-a/b", Token: shown[0].Token, Hostname: "worker-1", Owner: "billing", Trigger: "manual", By: api.Other,
			Who: admin.Who(), Reason: "OPS-1: worker-1 was replaced", Revision: shown[0].Revision, Fields: shown[0].Fields,
		}, shown[0])
		require.InDelta(t, float64(time.Now().Unix()), d.metric("unlocker_forced_unlock_timestamp_seconds", "lock", "a/b", "trigger", "manual"), 60)
	}

	// A holder that releases late looks like a removal by another client: no replica counts it.
	e.Put(e.Lock("released", time.Now(), time.Now().Add(-time.Millisecond))...)
	for _, d := range replicas {
		d.awaitMetric(1, "unlocker_locks", "state", "expired")
	}
	e.Put(clientv3.OpDelete(prefix+"released/", clientv3.WithPrefix()))
	for _, d := range replicas {
		etcdtest.Eventually(t, func() bool { return len(d.forced("released")) == 1 })
		require.Equal(t, []any{verdict.Trigger(""), api.Other}, []any{d.forced("released")[0].Trigger, d.forced("released")[0].By})
		require.Zero(t, d.metric("unlocker_forced_unlock_timestamp_seconds", "lock", "released"))
	}

	late := startDaemon(t, e.Endpoints())
	etcdtest.Eventually(t, func() bool { return len(late.forced("")) == 2 })
	require.Equal(t, "a/b", late.forced("")[1].Name)
	require.NotZero(t, late.metric("unlocker_forced_unlock_timestamp_seconds", "lock", "a/b", "trigger", "manual"))
	require.Empty(t, late.log.Lines(api.LogUnlocked), "the replicas of its time logged and counted it")
	require.Zero(t, late.metric("unlocker_forced_unlocks_total"))

	// What happens while a replica is cut off is new to it afterwards.
	proxy.Cut()
	e.Put(e.Lock("c", later, later)...)
	unlock(t, e, "c", "")
	require.NoError(t, proxy.Heal())
	replicas[1].awaitMetric(3, "unlocker_forced_unlocks_total", "trigger", "manual")
	require.Len(t, replicas[1].log.Lines(api.LogUnlocked), 3)
}

// Any client with the right to write under audit_prefix may have written what is there.
func TestForgedRecordsAreBounded(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	forged := api.Forced{At: time.Now().Add(1000 * time.Hour), Name: "a", Who: "\x1b[31mmallory\n@host"}
	valid := records.Encode(prefix, forged)
	forged.Name = "foreign"
	foreign := records.Encode("/other/", forged)
	e.Put(clientv3.OpPut(auditPrefix+"old", valid), clientv3.OpPut(auditPrefix+"huge", strings.Repeat(" ", 1<<20)+valid))
	d := startDaemon(t, e.Endpoints())
	etcdtest.Eventually(t, func() bool { return len(d.forced("a")) == 1 })
	require.False(t, d.forced("a")[0].At.After(time.Now()), "whatever its record says")
	e.Put(clientv3.OpPut(auditPrefix+"foreign", foreign), clientv3.OpPut(auditPrefix+"junk", "junk"))
	const n = 3000
	var puts []clientv3.Op
	for i := range n {
		puts = append(puts, clientv3.OpPut(fmt.Sprint(auditPrefix, "flood", i), valid))
	}
	e.Put(puts...)
	e.Put(clientv3.OpPut(auditPrefix+"last", "junk"))
	d.awaitMetric(n, "unlocker_forced_unlocks_total", "trigger", "manual")
	require.Less(t, len(d.log.Lines(api.LogUnlocked)), n, "a burst, and 100 a second")
	require.NotEmpty(t, d.log.Lines(api.LogManyUnlocks))
	require.Empty(t, d.forced("foreign"))
	bad := slices.DeleteFunc(d.log.Lines(api.LogBadRecord), func(l map[string]any) bool { return l["level"] != "WARN" })
	require.Len(t, bad, 1, "once a minute")
	require.Equal(t, []any{auditPrefix + "huge", "32769 bytes: a record has at most 32768"}, []any{bad[0]["key"], bad[0]["error"]})
	d.awaitReaping()
}

// Every replica lists what any of them removed, with the same words, also one that is started later, and when etcd
// has compacted all that there was of the lock.
func TestS7_EachReplicaListsWhatOthersRemoved(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	_, gone := p.lock(t, "billing/invoices", time.Second)
	gone()
	p.leader.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	etcdtest.Eventually(t, func() bool { return len(auditRecords(t, p.Etcd)) == 1 })
	self := p.leader.forced("billing/invoices")
	require.Len(t, self, 1)
	require.Equal(t, []any{verdict.Expiry, api.Self}, []any{self[0].Trigger, self[0].By})
	require.NotEmpty(t, self[0].Replica)
	require.Contains(t, self[0].Fields, api.Field{Name: "uuid", Value: self[0].UUID})
	want := self[0]
	want.By = api.Other
	same := func(d *daemon) {
		t.Helper()
		etcdtest.Eventually(t, func() bool { f := d.forced("billing/invoices"); return len(f) == 1 && f[0].Trigger != "" })
		require.Equal(t, []api.Forced{want}, d.forced("billing/invoices"), "with the verdict")
		require.InDelta(t, float64(want.At.UnixNano())/1e9, d.metric("unlocker_forced_unlock_timestamp_seconds", "lock", "billing/invoices", "trigger", "expiry"), 1e-3)
		require.Zero(t, d.metric("unlocker_forced_unlocks_total"), "counted by the one that removed it")
	}
	said := p.leader.saysOfRemovals("billing/invoices")
	require.Contains(t, said, "replica <bdi>"+want.Replica+"</bdi> (<strong>expiry</strong>): <bdi>its holder missed its deadline</bdi>")
	same(p.standby)

	p.leader.stop()
	resp, err := p.Client.Get(t.Context(), "x")
	require.NoError(t, err)
	_, err = p.Client.Compact(t.Context(), resp.Header.Revision)
	require.NoError(t, err)
	restarted := startDaemon(t, p.Endpoints())
	for _, d := range []*daemon{restarted, p.standby} {
		same(d)
		require.Equal(t, said, d.saysOfRemovals("billing/invoices"), "by the pages, where the alert links")
		var h api.History
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/history?name=billing%2Finvoices", &h))
		require.True(t, h.Compacted)
		require.Len(t, h.Periods, 1)
		require.Equal(t, []any{want.UUID, want.Token, api.EndExpired, want.At, want.Replica},
			[]any{h.Periods[0].UUID, h.Periods[0].Token, h.Periods[0].Ended.How, h.Periods[0].Ended.At, h.Periods[0].Ended.Replica})
	}
	require.Len(t, auditRecords(t, p.Etcd), 1)
}

// Removals share a lease for their records, and get another one when that is lost.
func TestRecordsShareALease(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Election.Enabled = false })
	d.awaitReaping()
	leases := func() []clientv3.LeaseStatus {
		resp, err := e.Client.Leases(t.Context())
		require.NoError(t, err)
		return resp.Leases
	}
	const n = 200
	putLocks(e, n, time.Now().Add(-time.Minute))
	awaitRecords := func(n int) {
		t.Helper()
		etcdtest.Eventually(t, func() bool { return len(auditRecords(t, e)) == n })
	}
	awaitRecords(n)
	first := leases()
	require.Len(t, first, 1)
	left, err := e.Client.TimeToLive(t.Context(), first[0].ID)
	require.NoError(t, err)
	require.EqualValues(t, 25*3600, left.GrantedTTL, "a record of the last hour stays for a day, too")
	_, err = e.Client.Revoke(t.Context(), first[0].ID)
	require.NoError(t, err)
	require.Empty(t, auditRecords(t, e))
	e.Put(e.Lock("next", time.Now(), time.Now().Add(-time.Hour))...)
	awaitRecords(1)
	require.Len(t, leases(), 1)
	require.Len(t, d.forced("next"), 1)
	require.Zero(t, d.metric("unlocker_records_dropped_total"))
	require.Empty(t, d.warnings())
}

// Without the right to write records removals work; what is dropped is counted and said once.
func TestRecordsWithoutTheRight(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	l.revoke(auditPrefix)
	l.read(auditPrefix)
	d := l.daemon(fast)
	d.awaitReaping()
	remove := func(name string) {
		t.Helper()
		l.Put(l.Lock(name, time.Now(), time.Now().Add(-time.Hour))...)
		etcdtest.Eventually(t, func() bool { return len(d.forced(name)) == 1 && d.forced(name)[0].Trigger == verdict.Expiry })
	}
	for i := range 3 {
		remove(fmt.Sprint("a", i))
		d.awaitMetric(float64(i+1), "unlocker_records_dropped_total")
	}
	d.warnsOnce(api.LogRecordsDropped, `user "unlocker" needs readwrite on [`+auditPrefix)
	l.below(auditPrefix)
	remove("b")
	etcdtest.Eventually(t, func() bool { return len(auditRecords(t, l.Etcd)) == 1 })
	require.EqualValues(t, 3, d.metric("unlocker_records_dropped_total"))
}

// Without the right to read the records the daemon works, says so once, and reads them as soon as
// it may.
func TestLockedOutOfTheRecords(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	l.revoke(auditPrefix)
	d := l.daemon(fast, func(c *config.Config) { c.Reaper.Freshness = 3 * time.Second })
	l.requireWorking(d, "a")
	d.warnsOnce(api.LogPrefixFailed, `user "unlocker" needs read on [`+auditPrefix)
	later := time.Now().Add(time.Hour)
	l.Put(l.Lock("b", later, later)...)
	l.read(auditPrefix)
	l.Put(clientv3.OpPut(auditPrefix+"1", records.Encode(prefix, api.Forced{At: time.Now(), Name: "b"})))
	etcdtest.Eventually(t, func() bool { return len(d.forced("b")) == 1 })
}
