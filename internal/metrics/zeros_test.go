package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
)

// Before anything has happened, every counter is exported as zero.
func TestZerosFromTheStart(t *testing.T) {
	reg, _ := newRegistry(t, always{}, 500)
	got := exposition(t, reg, "unlocker_locks", "unlocker_locks_braked", "unlocker_lock_series_omitted", "unlocker_lock_acquisitions_total",
		"unlocker_lock_releases_total", "unlocker_lock_renewals_total", "unlocker_lock_info", "unlocker_pauses", "unlocker_would_", "unlocker_reaper_", "unlocker_records_",
		"unlocker_forced_unlocks_total", "unlocker_forced_unlock_conflicts_total", "unlocker_forced_unlock_timestamp_seconds",
		"unlocker_leader", "unlocker_clock_", "unlocker_host_clock_", "unlocker_etcd_", "unlocker_last_", "unlocker_watch_lag_", "unlocker_watch_last_",
		"unlocker_resync_", "unlocker_waiters", "unlocker_lock_waiters", "unlocker_oldest_", "unlocker_deadlocks")
	require.Equal(t, unindent(`
		unlocker_clock_offset_seconds 0
		unlocker_deadlocks 0
		unlocker_etcd_alarm{alarm="CORRUPT"} 0
		unlocker_etcd_alarm{alarm="NOSPACE"} 0
		unlocker_etcd_revision 0
		unlocker_etcd_up 0
		unlocker_forced_unlock_conflicts_total 0
		unlocker_forced_unlocks_total{trigger="expiry"} 0
		unlocker_forced_unlocks_total{trigger="manual"} 0
		unlocker_forced_unlocks_total{trigger="orphan"} 0
		unlocker_forced_unlocks_total{trigger="presumed"} 0
		unlocker_last_resync_timestamp_seconds 0
		unlocker_leader 0
		unlocker_lock_acquisitions_total 0
		unlocker_lock_releases_total{by="other"} 0
		unlocker_lock_releases_total{by="self"} 0
		unlocker_lock_renewals_total 0
		unlocker_lock_series_omitted 0
		unlocker_locks{state="expired"} 0
		unlocker_locks{state="held"} 0
		unlocker_locks{state="malformed"} 0
		unlocker_locks{state="orphaned"} 0
		unlocker_locks{state="overdue"} 0
		unlocker_locks{state="undated"} 0
		unlocker_locks_braked 0
		unlocker_oldest_waiter_timestamp_seconds 0
		unlocker_pauses 0
		unlocker_reaper_backlog 0
		unlocker_reaper_hold{reason="alarm"} 0
		unlocker_reaper_hold{reason="disconnected"} 0
		unlocker_reaper_hold{reason="dry_run"} 0
		unlocker_reaper_hold{reason="paused"} 0
		unlocker_reaper_hold{reason="regressed"} 0
		unlocker_reaper_hold{reason="starting"} 0
		unlocker_reaper_storm_delayed 0
		unlocker_records_dropped_total 0
		unlocker_resync_drift_total 0
		unlocker_waiters 0
		unlocker_watch_lag_revisions 0
		unlocker_watch_last_progress_timestamp_seconds 0
		unlocker_would_unlock_total 0`), got)
}

func TestLintIsSilent(t *testing.T) {
	reg, h := newRegistry(t, always(full()), 500)
	h.ForcedUnlockDelay.Observe(1)
	h.LockHoldDuration.Observe(1)
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Greater(t, len(families), 50, "with those of Go and of the process")
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}
