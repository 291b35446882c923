package scan

import (
	"cmp"
	"errors"
	"log/slog"
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
	levels etcd.Levels // of reasons, since the last progress
}

func newView(changed func()) view {
	if changed == nil {
		changed = func() {}
	}
	return view{changed: changed, levels: etcd.Levels{}, Status: Status{Restarts: make(map[Reason]uint64)}}
}

// Status returns the present status. It may be called concurrently with Run.
func (s *Scanner) Status() Status {
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	st := s.status.Status
	st.Restarts = maps.Clone(st.Restarts)
	return st
}

func (s *view) update(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.Status)
}

func (s *view) listed(rev int64) {
	defer s.changed()
	s.update(func(s *Status) {
		s.Listing, s.Revision, s.Passed, s.Resynced = false, max(s.Revision, rev), max(s.Passed, rev), time.Now()
		s.Listed = cmp.Or(s.Listed, s.Resynced)
	})
}

func (s *view) progressed(rev, passed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Connected, s.Revision, s.Passed, s.Progress = true, rev, passed, time.Now()
	s.LastError = nil
	clear(s.levels)
}

// historyChanged resets the status after a restore of etcd.
func (s *view) historyChanged() {
	s.update(func(s *Status) { s.Listed, s.Revision, s.Passed, s.History = time.Time{}, 0, 0, s.History+1 })
}

func (s *view) disconnected() {
	s.update(func(s *Status) { s.Connected, s.Lost = false, time.Now() })
}

// failed counts a failure, and returns the level of its message.
func (s *view) failed(reason Reason, err error) slog.Level {
	defer s.changed()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Restarts[reason]++
	s.LastError = err
	return s.levels.Of(string(reason))
}

// Reason is why a watch ended or a listing failed: the label of unlocker_watch_restarts_total.
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
