package metrics

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/native"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// full is a snapshot with at least one series in every family.
func full() Snapshot {
	overdue := makeOverdue("a/b", fields{
		"locked_at": "1699999990", "alert_at": "1699999995.5", "auto_unlock_at": "1700000001", "hostname": "h1", "owner": "billing",
	})
	overdue.Rhythm = &api.Rhythm{RenewedAt: noon.Add(-time.Minute), Interval: 10, Missed: 5}
	return Snapshot{
		Table: table.Stats{
			Locks:   [protocol.NumStates]int{protocol.Held: 5, protocol.Overdue: 1, protocol.Expired: 2, protocol.Undated: 3, protocol.Malformed: 4, protocol.Orphaned: 6},
			Backlog: 2, Braked: 7, Storm: &api.Storm{Delayed: 3},
			Overdue: []table.View{overdue}, OverdueTotal: 4,
			Totals: table.Totals{Acquired: 10, Renewed: 20, Released: 30, Drift: 1},
			Clocks: api.Clock{Hosts: 3, Offset: 1.5, Skewed: []api.HostClock{
				{Hostname: "h1", Offset: -3600}, {Hostname: "h2\xff", Offset: 4}, {Hostname: "h2\xfe", Offset: 3},
			}},
		},
		Scan: scan.Status{
			Listed: noon, Connected: true, Revision: 77, Passed: 70, Progress: noon, Resynced: noon.Add(-1500 * time.Millisecond),
			Restarts: map[scan.Reason]uint64{"stalled": 2},
		},
		Reaper: reaper.Stats{
			Removed:  map[verdict.Trigger]uint64{verdict.Expiry: 8, verdict.Manual: 1},
			Failures: map[lockstore.Reason]uint64{lockstore.ReasonAmbiguous: 3}, Conflicts: 4, Would: 5,
			ReleasedBySelf: 7, ReleasedByOther: 6,
		},
		Forced: []api.Forced{
			removal("x", "h2", 0), {Name: "y", At: noon, Trigger: verdict.Orphan},
			{Name: "z", At: noon, Trigger: verdict.Manual}, {Name: "z", At: noon, Trigger: verdict.Presumed},
		},
		Holds: []api.Hold{{Hold: verdict.HoldStarting, Since: noon}, {Hold: verdict.HoldAlarm, Since: noon}},
		Pauses: []api.Pause{{By: "ada@laptop", Reason: "network", Until: noon}, {Match: "a/**", By: "b", Reason: "\xff", Until: noon},
			{Match: "a/**", By: "b", Reason: "\xfe", Until: noon}, {Reason: "the record /p/x cannot be read"}},
		Probe:  probe.Status{OK: true, Up: true, Good: noon, Alarms: []string{"NOSPACE"}, Revision: 75},
		Leader: true,
		Native: []native.Listing{
			{NativePrefix: api.NativePrefix{Prefix: "/locks/", Held: 3}, Oldest: noon}, {NativePrefix: api.NativePrefix{Prefix: "/elections/"}},
		},
		Waiters: waiters.Stats{Waiting: 9, Deadlocks: 2, Oldest: noon, Most: []waiters.Count{{Name: "a/b", Waiters: 5}, {Name: "x\xff", Waiters: 3}, {Name: "x\xfe", Waiters: 1}}},
		Certificates: []api.Certificate{
			{Name: "etcd_ca", Expires: time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)}, {Name: "etcd_client", Expires: noon.Add(time.Second / 2)},
		},
	}
}

func TestExposition(t *testing.T) {
	for _, tc := range []struct {
		name     string
		snapshot Snapshot
		limit    int
		names    []string
		want     string
	}{
		{"locks and traffic", full(), 500, []string{"unlocker_locks", "unlocker_locks_braked", "unlocker_reaper_", "unlocker_lock_acquisitions_total", "unlocker_lock_renewals_total", "unlocker_lock_releases_total"}, `
			unlocker_lock_acquisitions_total 10
			unlocker_lock_releases_total{by="other"} 36
			unlocker_lock_releases_total{by="self"} 7
			unlocker_lock_renewals_total 20
			unlocker_locks{state="expired"} 2
			unlocker_locks{state="held"} 5
			unlocker_locks{state="malformed"} 4
			unlocker_locks{state="orphaned"} 6
			unlocker_locks{state="overdue"} 1
			unlocker_locks{state="undated"} 3
			unlocker_locks_braked 7
			unlocker_reaper_backlog 2
			unlocker_reaper_hold{reason="alarm"} 1
			unlocker_reaper_hold{reason="disconnected"} 0
			unlocker_reaper_hold{reason="dry_run"} 0
			unlocker_reaper_hold{reason="paused"} 0
			unlocker_reaper_hold{reason="regressed"} 0
			unlocker_reaper_hold{reason="starting"} 1
			unlocker_reaper_storm_delayed 3`},
		{"leader and clocks", full(), 500, []string{"unlocker_leader", "unlocker_clock_", "unlocker_host_clock_"}, `
			unlocker_clock_offset_seconds 1.5
			unlocker_host_clock_offset_seconds{hostname="h1"} -3600
			unlocker_host_clock_offset_seconds{hostname="h2` + "\uFFFD" + `"} 4
			unlocker_leader 1`},
		{"a watch without a probe", Snapshot{Scan: scan.Status{Connected: true}}, 500, []string{"unlocker_etcd_up"}, `unlocker_etcd_up 0`},
		{"a probe without a watch", Snapshot{Probe: probe.Status{OK: true}}, 500, []string{"unlocker_etcd_up"}, `unlocker_etcd_up 0`},
		{"one overdue lock", full(), 500, perLock(), `
			unlocker_lock_alert_timestamp_seconds{lock="a/b"} 1699999995.5
			unlocker_lock_auto_unlock_timestamp_seconds{lock="a/b"} 1700000001
			unlocker_lock_info{hostname="h1",lock="a/b",owner="billing"} 1
			unlocker_lock_locked_timestamp_seconds{lock="a/b"} 1699999990
			unlocker_lock_missed_renewals{lock="a/b"} 5
			unlocker_lock_renewed_timestamp_seconds{lock="a/b"} 1699999940
			unlocker_lock_series_omitted 3`},
		{"a holder that a blind replica does not see renew", blind(), 500, []string{"unlocker_lock_missed_renewals", "unlocker_lock_renewed_timestamp_seconds"}, ``},
		{"forced unlocks", full(), 500, []string{"unlocker_forced_unlock_timestamp_seconds", "unlocker_forced_unlocks_total", "unlocker_forced_unlock_conflicts_total", "unlocker_forced_unlock_failures_total", "unlocker_would_"}, `
			unlocker_forced_unlock_conflicts_total 4
			unlocker_forced_unlock_failures_total{reason="ambiguous"} 3
			unlocker_forced_unlock_failures_total{reason="auth"} 0
			unlocker_forced_unlock_failures_total{reason="busy"} 0
			unlocker_forced_unlock_failures_total{reason="no_leader"} 0
			unlocker_forced_unlock_failures_total{reason="permission_denied"} 0
			unlocker_forced_unlock_failures_total{reason="rejected"} 0
			unlocker_forced_unlock_failures_total{reason="too_large"} 0
			unlocker_forced_unlock_failures_total{reason="unlogged"} 0
			unlocker_forced_unlock_failures_total{reason="unreadable"} 0
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="y",owner="",trigger="orphan"} 1700000000
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="z",owner="",trigger="manual"} 1700000000
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="z",owner="",trigger="presumed"} 1700000000
			unlocker_forced_unlock_timestamp_seconds{hostname="h2",lock="x",owner="o",trigger="expiry"} 1700000000
			unlocker_forced_unlocks_total{trigger="expiry"} 8
			unlocker_forced_unlocks_total{trigger="manual"} 1
			unlocker_forced_unlocks_total{trigger="orphan"} 0
			unlocker_forced_unlocks_total{trigger="presumed"} 0
			unlocker_would_unlock_total 5`},
		{"pauses", full(), 500, []string{"unlocker_pause_until_timestamp_seconds", "unlocker_pauses"}, `
			unlocker_pause_until_timestamp_seconds{by="",match="",reason="the record /p/x cannot be read"} 0
			unlocker_pause_until_timestamp_seconds{by="ada@laptop",match="",reason="network"} 1700000000
			unlocker_pause_until_timestamp_seconds{by="b",match="a/**",reason="` + "\uFFFD" + `"} 1700000000
			unlocker_pauses 4`},
		{"etcd", full(), 500, []string{"unlocker_etcd_", "unlocker_watch_", "unlocker_last_", "unlocker_resync_"}, `
			unlocker_etcd_alarm{alarm="CORRUPT"} 0
			unlocker_etcd_alarm{alarm="NOSPACE"} 1
			unlocker_etcd_revision 77
			unlocker_etcd_up 1
			unlocker_last_resync_timestamp_seconds 1699999998.5
			unlocker_resync_drift_total 1
			unlocker_watch_lag_revisions 5
			unlocker_watch_last_progress_timestamp_seconds 1700000000
			unlocker_watch_restarts_total{reason="auth"} 0
			unlocker_watch_restarts_total{reason="compacted"} 0
			unlocker_watch_restarts_total{reason="ended"} 0
			unlocker_watch_restarts_total{reason="lagging"} 0
			unlocker_watch_restarts_total{reason="no_leader"} 0
			unlocker_watch_restarts_total{reason="other"} 0
			unlocker_watch_restarts_total{reason="permission_denied"} 0
			unlocker_watch_restarts_total{reason="regressed"} 0
			unlocker_watch_restarts_total{reason="stalled"} 2
			unlocker_watch_restarts_total{reason="timeout"} 0
			unlocker_watch_restarts_total{reason="unavailable"} 0`},
		{"waiters, the most of names that look the same", full(), 500, []string{"unlocker_waiters", "unlocker_lock_waiters", "unlocker_oldest_", "unlocker_deadlocks"}, `
			unlocker_deadlocks 2
			unlocker_lock_waiters{lock="a/b"} 5
			unlocker_lock_waiters{lock="x` + "\uFFFD" + `"} 3
			unlocker_oldest_waiter_timestamp_seconds 1700000000
			unlocker_waiters 9`},
		{"native prefixes, one where nothing is held", full(), 500, []string{"unlocker_native_"}, `
			unlocker_native_locks{prefix="/elections/"} 0
			unlocker_native_locks{prefix="/locks/"} 3
			unlocker_native_oldest_lock_timestamp_seconds{prefix="/locks/"} 1700000000`},
		{"certificates, one that never expires", full(), 500, []string{"unlocker_certificate_"}, `
			unlocker_certificate_expiry_timestamp_seconds{certificate="etcd_ca"} 253402300799
			unlocker_certificate_expiry_timestamp_seconds{certificate="etcd_client"} 1700000000`},
		{"no certificates", Snapshot{}, 500, []string{"unlocker_certificate_"}, ``},
		{"a certificate that cannot be read", Snapshot{Certificates: []api.Certificate{{Name: "etcd_client"}}}, 500,
			[]string{"unlocker_certificate_"}, `unlocker_certificate_expiry_timestamp_seconds{certificate="etcd_client"} 0`},
		{"absent timestamps have no series", Snapshot{Table: table.Stats{OverdueTotal: 1, Overdue: []table.View{
			makeOverdue("a", fields{"auto_unlock_at": "1700000001"}),
		}}}, 500, perLock(), `
			unlocker_lock_auto_unlock_timestamp_seconds{lock="a"} 1700000001
			unlocker_lock_info{hostname="",lock="a",owner=""} 1
			unlocker_lock_series_omitted 0`},
		{"a holder's clock that is off", Snapshot{Table: table.Stats{OverdueTotal: 1, Overdue: []table.View{
			{Lock: makeOverdue("a", fields{"locked_at": "1699999000", "alert_at": "1699999100.5", "auto_unlock_at": "1700000001"}).Lock, Ahead: -30 * time.Second},
		}}}, 500, perLock()[:3], `
			unlocker_lock_alert_timestamp_seconds{lock="a"} 1699999130.5
			unlocker_lock_auto_unlock_timestamp_seconds{lock="a"} 1700000031
			unlocker_lock_locked_timestamp_seconds{lock="a"} 1699999030`},
		{"limit", manyOverdue(3, 9), 2, perLock(), `
			unlocker_lock_alert_timestamp_seconds{lock="l0"} 1700000000
			unlocker_lock_alert_timestamp_seconds{lock="l1"} 1700000001
			unlocker_lock_info{hostname="h",lock="l0",owner=""} 1
			unlocker_lock_info{hostname="h",lock="l1",owner=""} 1
			unlocker_lock_series_omitted 7`},
		{"limit of 0", manyOverdue(3, 9), 0, perLock(), `unlocker_lock_series_omitted 9`},
		{"only the newest removal of a lock", Snapshot{Forced: []api.Forced{
			removal("a", "h", 9), removal("a", "other", 8), removal("a", "h", 7), removal("b", "h", 6), removal("c", "h", 5),
		}}, 3, []string{"unlocker_forced_unlock_timestamp_seconds"}, `
			unlocker_forced_unlock_timestamp_seconds{hostname="h",lock="a",owner="o",trigger="expiry"} 1700000009
			unlocker_forced_unlock_timestamp_seconds{hostname="h",lock="b",owner="o",trigger="expiry"} 1700000006
			unlocker_forced_unlock_timestamp_seconds{hostname="other",lock="a",owner="o",trigger="expiry"} 1700000008`},
		{"removals of one lock with other owners and triggers", Snapshot{Forced: []api.Forced{
			removal("a", "h", 9), {Name: "a", Hostname: "h", Owner: "o", At: noon, Trigger: verdict.Orphan},
			{Name: "a", Hostname: "h", Owner: "p\xff", At: noon, Trigger: verdict.Expiry},
		}}, 3, []string{"unlocker_forced_unlock_timestamp_seconds"}, `
			unlocker_forced_unlock_timestamp_seconds{hostname="h",lock="a",owner="o",trigger="expiry"} 1700000009
			unlocker_forced_unlock_timestamp_seconds{hostname="h",lock="a",owner="o",trigger="orphan"} 1700000000
			unlocker_forced_unlock_timestamp_seconds{hostname="h",lock="a",owner="p` + "\uFFFD" + `",trigger="expiry"} 1700000000`},
		{"an unknown label value", Snapshot{Reaper: reaper.Stats{Removed: map[verdict.Trigger]uint64{"new": 1}}}, 1,
			[]string{"unlocker_forced_unlocks_total"}, `
			unlocker_forced_unlocks_total{trigger="expiry"} 0
			unlocker_forced_unlocks_total{trigger="manual"} 0
			unlocker_forced_unlocks_total{trigger="new"} 1
			unlocker_forced_unlocks_total{trigger="orphan"} 0
			unlocker_forced_unlocks_total{trigger="presumed"} 0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg, _ := newRegistry(t, always(tc.snapshot), tc.limit)
			require.Equal(t, unindent(tc.want), exposition(t, reg, tc.names...))
		})
	}
}

// perLock are the families with a series for each overdue lock, and the number of
// omitted locks.
func perLock() []string {
	return []string{
		"unlocker_lock_locked_timestamp_seconds", "unlocker_lock_alert_timestamp_seconds",
		"unlocker_lock_auto_unlock_timestamp_seconds", "unlocker_lock_info",
		"unlocker_lock_missed_renewals", "unlocker_lock_renewed_timestamp_seconds", "unlocker_lock_series_omitted",
	}
}

func blind() Snapshot {
	s := full()
	s.Scan.Connected = false
	return s
}

func manyOverdue(n, total int) Snapshot {
	s := Snapshot{Table: table.Stats{OverdueTotal: total}}
	for i := range n {
		s.Table.Overdue = append(s.Table.Overdue, makeOverdue("l"+strconv.Itoa(i), fields{
			"hostname": "h", "alert_at": strconv.FormatInt(noon.Unix()+int64(i), 10),
		}))
	}
	return s
}
