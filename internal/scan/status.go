package scan

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

// Status is the state of the listing and the watch.
type Status struct {
	// Listed is when the first listing of this history of etcd ended; zero before. History
	// is the number of times that etcd was found restored or diverged.
	Listed  time.Time
	History int
	// Listing reports whether the table has a listing without a watch in part.
	Listing bool
	// Connected reports whether a watch is up and has shown an event or a progress notice.
	Connected bool
	// Lost is when a watch last ended; zero means never.
	Lost time.Time
	// Revision is the newest revision of etcd that was seen. Passed is that up to which the table has what
	// the watch shows.
	Revision, Passed int64
	// Progress is when the watch last showed an event or a progress notice. Resynced is when
	// the last full listing ended. Zero means never.
	Progress, Resynced time.Time
	// Restarts is the number of failures by reason. LastError is the newest one; nil after
	// the watch has recovered.
	Restarts  map[Reason]uint64
	LastError error
}

type view struct {
	mu sync.Mutex
	// changed is Options.Changed.
	changed func()
	Status
	reason Reason
	warned time.Time
}

func newView(changed func()) view {
	if changed == nil {
		changed = func() {}
	}
	restarts := make(map[Reason]uint64)
	for _, r := range Reasons() {
		restarts[r] = 0
	}
	return view{changed: changed, Status: Status{Restarts: restarts}}
}

// Status returns the present status. It may be called concurrently with Run.
func (s *Scanner) Status() Status {
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	st := s.status.Status
	st.Restarts = maps.Clone(st.Restarts)
	return st
}

func (s *view) listing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Listing = true
}

func (s *view) listed(rev int64) {
	defer s.changed()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.Listed.IsZero() {
		s.Listed = now
	}
	s.Listing, s.Revision, s.Passed, s.Resynced = false, max(s.Revision, rev), max(s.Passed, rev), now
}

func (s *view) progressed(rev, passed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Connected, s.Revision, s.Passed, s.Progress = true, rev, passed, time.Now()
	s.LastError, s.reason = nil, ""
}

// historyChanged resets the status after a restore of etcd.
func (s *view) historyChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Listed, s.Revision, s.Passed = time.Time{}, 0, 0
	s.History++
}

func (s *view) disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Connected, s.Lost = false, time.Now()
}

// warnInterval is the interval in which a lasting failure is logged as a warning.
const warnInterval = time.Minute

// failed counts a failure, and reports whether to log it as a warning: if its reason is new, or
// if the last warning is older than warnInterval.
func (s *view) failed(reason Reason, err error) (warn bool) {
	defer s.changed()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Restarts[reason]++
	s.LastError = err
	warn = reason != s.reason || time.Since(s.warned) >= warnInterval
	if warn {
		s.reason, s.warned = reason, time.Now()
	}
	return warn
}

// Reason is why a watch ended or a listing failed: the label of
// unlocker_watch_restarts_total.
type Reason = etcd.Reason

// ReasonLagging is that the watch fell behind: etcd is written faster than it hands the events to a watch
// that is not current.
const ReasonLagging Reason = "lagging"

// ReasonRegressed is that etcd was restored or diverged: it shows another cluster, an older
// revision, or other writes.
const ReasonRegressed Reason = "regressed"

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{
		etcd.Compacted, etcd.NoLeader, etcd.Auth, etcd.PermissionDenied, etcd.Stalled,
		etcd.Ended, ReasonLagging, ReasonRegressed, etcd.Timeout, etcd.Unavailable, etcd.Other,
	}
}

var errRegressed = errors.New("etcd was restored or diverged: another cluster, an older revision, or other writes")

func classify(err error) Reason {
	if errors.Is(err, errLagging) {
		return ReasonLagging
	}
	if errors.Is(err, errRegressed) || errors.Is(err, table.ErrOlder) {
		return ReasonRegressed
	}
	if reason := etcd.Classify(err); slices.Contains(Reasons(), reason) {
		return reason
	}
	return etcd.Other
}
