package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// family is one metric with all its series.
type family struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	collect func(*view, emit)
}

// emit takes the value of one series, with label values in the order of the family's
// labels. Of equal label sets the first counts.
type emit func(value float64, labels ...string)

func one(value func(*view) float64) func(*view, emit) {
	return func(v *view, e emit) { e(value(v)) }
}

// families returns all metrics that are computed from a snapshot. docs/metrics.md
// has the same help texts.
func families() (all []family) {
	add := func(name string, kind prometheus.ValueType, help string, collect func(*view, emit), labels ...string) {
		all = append(all, family{prometheus.NewDesc(name, help, labels, nil), kind, collect})
	}

	add("unlocker_locks", gauge, "Locks by state.",
		func(v *view, e emit) {
			for s, n := range v.Table.Locks {
				e(float64(n), protocol.State(s).String())
			}
		}, "state")
	add("unlocker_lock_locked_timestamp_seconds", gauge, "When a lock past its alert time was taken; corrected where its holder's clock is off.",
		dates((*protocol.Lock).LockedAt), "lock")
	add("unlocker_lock_alert_timestamp_seconds", gauge, "The alert time of a lock past its alert time; corrected where its holder's clock is off.",
		dates((*protocol.Lock).AlertAt), "lock")
	add("unlocker_lock_auto_unlock_timestamp_seconds", gauge, "The auto-unlock time of a lock past its alert time; corrected where its holder's clock is off.",
		dates((*protocol.Lock).AutoUnlockAt), "lock")
	add("unlocker_lock_info", gauge, "The holder of a lock past its alert time; always 1.",
		func(v *view, e emit) {
			for _, l := range v.overdue {
				e(1, l.Name, label(l.Hostname(), maxHost), label(l.Owner(), maxHost))
			}
		}, "lock", "hostname", "owner")
	add("unlocker_lock_renewed_timestamp_seconds", gauge, "When the holder of a lock past its alert time last renewed it, where this replica sees in which rhythm it does.",
		rhythms(func(r *api.Rhythm) float64 { return seconds(r.RenewedAt) }), "lock")
	add("unlocker_lock_missed_renewals", gauge, "Renewals that the holder of a lock past its alert time has missed, where this replica sees in which rhythm it renews.",
		rhythms(func(r *api.Rhythm) float64 { return float64(r.Missed) }), "lock")
	add("unlocker_lock_series_omitted", gauge, "Locks past their alert time that have no series of their own.",
		// beyond the limit, or merged with another lock
		one(func(v *view) float64 { return float64(max(0, v.Table.OverdueTotal-len(v.overdue))) }))

	add("unlocker_forced_unlock_timestamp_seconds", gauge, "When a recently force-unlocked lock was removed.",
		func(v *view, e emit) {
			for _, f := range v.forced {
				e(seconds(f.At), f.Name, f.Hostname, f.Owner, string(f.Trigger))
			}
		}, "lock", "hostname", "owner", "trigger")
	add("unlocker_forced_unlocks_total", counter, "Locks that were force-unlocked, by trigger.",
		func(v *view, e emit) {
			counts(e, []verdict.Trigger{verdict.Expiry, verdict.Orphan, verdict.Manual, verdict.Presumed}, v.Reaper.Removed)
		}, "trigger")
	add("unlocker_forced_unlock_conflicts_total", counter, "Removals that deleted nothing: the lock was modified or released concurrently, or another replica removed it.",
		one(func(v *view) float64 { return float64(v.Reaper.Conflicts) }))
	add("unlocker_forced_unlock_failures_total", counter, "Attempts to remove a lock that failed, by reason.",
		func(v *view, e emit) { counts(e, lockstore.Reasons(), v.Reaper.Failures) }, "reason")
	add("unlocker_records_dropped_total", counter, "Records of removals that were not written.",
		one(func(v *view) float64 { return float64(v.Reaper.RecordsDropped) }))
	add("unlocker_would_unlock_total", counter, "Verdicts of a dry run to remove a lock: one for each that is due, and one more for each write to it after that.",
		one(func(v *view) float64 { return float64(v.Reaper.Would) }))
	add("unlocker_reaper_backlog", gauge, "Locks that are due, may be removed (no policy, pause or brake keeps them), and are still there.",
		one(func(v *view) float64 { return float64(v.Table.Backlog) }))
	add("unlocker_reaper_storm_delayed", gauge, "Locks whose removal is delayed because many locks came due at once; not in the backlog.",
		one(func(v *view) float64 { return float64(v.Table.Storm.Waiting()) }))
	add("unlocker_locks_braked", gauge, "Locks that are due and kept by a brake until a user looks; not in the backlog.",
		one(func(v *view) float64 { return float64(v.Table.Braked) }))

	add("unlocker_reaper_hold", gauge, "Whether a hold stops the automatic removal of locks, by reason.",
		func(v *view, e emit) {
			for _, h := range verdict.AllHolds() {
				held := slices.ContainsFunc(v.Holds, func(in api.Hold) bool { return in.Hold == h })
				e(boolean(held), string(h))
			}
		}, "reason")
	add("unlocker_pauses", gauge, "Pauses in force, of all locks or of some.",
		one(func(v *view) float64 { return float64(len(v.Pauses)) }))
	add("unlocker_pause_until_timestamp_seconds", gauge, "When a pause in force ends; 0 for a record that cannot be read, which keeps all locks.",
		func(v *view, e emit) {
			for _, p := range v.Pauses {
				e(seconds(p.Until), label(p.Match, maxName), label(p.By, maxHost), label(p.Reason, maxName))
			}
		}, "match", "by", "reason")
	add("unlocker_leader", gauge, "Whether this replica is the leader, which removes first; without an election every replica is.",
		one(func(v *view) float64 { return boolean(v.Leader) }))

	add("unlocker_lock_acquisitions_total", counter, "Lock acquisitions observed.",
		one(func(v *view) float64 { return float64(v.Table.Acquired) }))
	add("unlocker_lock_renewals_total", counter, "Lock renewals observed.",
		one(func(v *view) float64 { return float64(v.Table.Renewed) }))
	add("unlocker_lock_releases_total", counter, "Lock releases observed, by whom: self is this replica, other is the holder, another replica or an operator.",
		func(v *view, e emit) {
			e(float64(v.Reaper.ReleasedBySelf), "self")
			e(float64(v.Table.Released+v.Reaper.ReleasedByOther), "other")
		}, "by")

	add("unlocker_waiters", gauge, "Tickets of those who wait for locks.",
		one(func(v *view) float64 { return float64(v.Waiters.Waiting) }))
	add("unlocker_oldest_waiter_timestamp_seconds", gauge, "When this replica first saw the oldest ticket that waits; 0 without one.",
		one(func(v *view) float64 { return seconds(v.Waiters.Oldest) }))
	add("unlocker_deadlocks", gauge, "Cycles of holders that wait for each other.",
		one(func(v *view) float64 { return float64(v.Waiters.Deadlocks) }))
	add("unlocker_lock_waiters", gauge, "Tickets of those who wait for a lock, by its name; the names with the most.",
		func(v *view, e emit) {
			for _, c := range v.Waiters.Most {
				e(float64(c.Waiters), label(c.Name, maxName))
			}
		}, "lock")

	add("unlocker_native_locks", gauge, "Keys that hold a lock or an election of etcd's own clients, by prefix.",
		func(v *view, e emit) {
			for _, p := range v.Native {
				e(float64(p.Held), label(p.Prefix, maxName))
			}
		}, "prefix")
	add("unlocker_native_oldest_lock_timestamp_seconds", gauge, "When the present holder of the lock below the prefix that is held longest was first seen to hold it.",
		func(v *view, e emit) {
			for _, p := range v.Native {
				if !p.Oldest.IsZero() {
					e(seconds(p.Oldest), label(p.Prefix, maxName))
				}
			}
		}, "prefix")

	add("unlocker_clock_offset_seconds", gauge, "The replica's clock minus the median clock of the holders' hosts; 0 while fewer than three hosts are known.",
		one(func(v *view) float64 { return v.Table.Clocks.Offset }))
	add("unlocker_host_clock_offset_seconds", gauge, "The clock of a holder's host minus the replica's clock, for hosts beyond the tolerance, the largest offsets first.",
		func(v *view, e emit) {
			for _, h := range v.Table.Clocks.Skewed {
				e(h.Offset, label(h.Hostname, maxHost))
			}
		}, "hostname")

	add("unlocker_etcd_up", gauge, "Whether etcd answers probes and the watch is up.",
		one(func(v *view) float64 { return boolean(v.EtcdUp()) }))
	add("unlocker_etcd_alarm", gauge, "Whether an alarm is raised in etcd, by alarm.",
		func(v *view, e emit) {
			for _, a := range []string{"NOSPACE", "CORRUPT"} {
				e(boolean(slices.Contains(v.Probe.Alarms, a)), a)
			}
		}, "alarm")
	add("unlocker_certificate_expiry_timestamp_seconds", gauge, "When the first certificate of a file for connections to etcd expires; 0 if the file cannot be read.",
		func(v *view, e emit) {
			// Not by seconds: a certificate without an expiry ends in the year 9999, beyond int64 nanoseconds.
			for _, c := range v.Certificates {
				if c.Expires.IsZero() {
					c.Expires = time.Unix(0, 0)
				}
				e(float64(c.Expires.Unix()), c.Name)
			}
		}, "certificate")
	add("unlocker_etcd_revision", gauge, "The newest etcd revision observed.",
		one(func(v *view) float64 { return float64(v.Scan.Revision) }))
	add("unlocker_watch_lag_revisions", gauge, "The newest revision that a probe showed, less the newest that the watch has passed.",
		one(func(v *view) float64 { return float64(v.WatchLag()) }))
	add("unlocker_watch_last_progress_timestamp_seconds", gauge, "When the watch last received an event or a progress notice; 0 if never.",
		one(func(v *view) float64 { return seconds(v.Scan.Progress) }))
	add("unlocker_last_resync_timestamp_seconds", gauge, "When the last full listing finished; 0 if never.",
		one(func(v *view) float64 { return seconds(v.Scan.Resynced) }))
	add("unlocker_watch_restarts_total", counter, "Failed watches and failed listings, by reason.",
		func(v *view, e emit) { counts(e, scan.Reasons(), v.Scan.Restarts) }, "reason")
	add("unlocker_resync_drift_total", counter, "Differences between a full listing and the state known from the watch.",
		one(func(v *view) float64 { return float64(v.Table.Drift) }))
	return all
}

// WatchLag returns by how many revisions the watch is behind the probe; 0 before the first listing.
func (s *Snapshot) WatchLag() int64 {
	if s.Scan.Passed == 0 {
		return 0
	}
	return max(0, s.Probe.Revision-s.Scan.Passed)
}

// EtcdUp reports whether etcd answers probes and the watch is up.
func (s *Snapshot) EtcdUp() bool { return s.Scan.Connected && s.Probe.Up }

func dates(of func(*protocol.Lock) protocol.Timestamp) func(*view, emit) {
	return func(v *view, e emit) {
		for _, l := range v.overdue {
			if t := of(&l.Lock); !t.IsZero() {
				e((t - protocol.Timestamp(l.Ahead)).Seconds(), l.Name)
			}
		}
	}
}

func rhythms(of func(*api.Rhythm) float64) func(*view, emit) {
	return func(v *view, e emit) {
		for _, l := range v.overdue {
			if l.Rhythm != nil && v.EtcdUp() {
				e(of(l.Rhythm), l.Name)
			}
		}
	}
}

// counts emits the known labels, starting at zero, and all others that were counted.
func counts[K ~string](e emit, known []K, counted map[K]uint64) {
	for _, k := range known {
		if _, ok := counted[k]; !ok {
			e(0, string(k))
		}
	}
	for k, n := range counted {
		e(float64(n), string(k))
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return protocol.TimestampOf(t).Seconds()
}

// maxBuckets is up to how many buckets a native histogram keeps full resolution, which is over twenty doublings with
// eight buckets each. A wider one is reset, at most once an hour, and has a lower resolution until then.
const maxBuckets = 160

// Histograms are the distributions, each both classic and native. Their Observe methods may be
// called concurrently.
type Histograms struct {
	ForcedUnlockDelay, LockHoldDuration, LockWaitDuration, RenewalMargin prometheus.Histogram
}

// NewHistograms returns histograms that are not registered.
func NewHistograms() *Histograms {
	return &Histograms{
		ForcedUnlockDelay: histogram("unlocker_forced_unlock_delay_seconds",
			"Time from when a lock was due until its deletion was observed.",
			// Even steps up to a second, the range of one transaction, and then a bound just
			// above each intended wait: standby_delay (5 s) and settle (15 s).
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 7.5, 10, 20, 60, 150, 300),
		LockHoldDuration: histogram("unlocker_lock_hold_duration_seconds",
			"How long released locks had been held.",
			// The deadlines that people choose: seconds, minutes, hours, a shift, a day.
			.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4*3600, 8*3600, 24*3600),
		LockWaitDuration: histogram("unlocker_lock_wait_duration_seconds",
			"How long those who waited with a ticket had waited when they took the lock.",
			// From the next hand-off to what others hold a lock for.
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 900, 3600),
		RenewalMargin: histogram("unlocker_renewal_margin_ratio",
			"Share of the patience that was left at each renewal; 0 at or past the deadline.",
			// The bound of a near miss, a tenth, and even steps around what clients leave that
			// renew in time.
			.01, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1),
	}
}

func histogram(name, help string, buckets ...float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:                        name,
		Help:                        help,
		Buckets:                     buckets,
		NativeHistogramBucketFactor: 1.1,
		// Values below the first classic bound need no native buckets either.
		NativeHistogramZeroThreshold:    buckets[0],
		NativeHistogramMaxBucketNumber:  maxBuckets,
		NativeHistogramMinResetDuration: time.Hour,
	})
}
