package verdict

import (
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Hold is a reason why no lock is removed automatically.
type Hold string

// The holds, with their names in metrics.
const (
	HoldStarting     Hold = "starting"
	HoldDisconnected Hold = "disconnected"
	HoldAlarm        Hold = "alarm"
	HoldStorm        Hold = "storm"
	HoldRegressed    Hold = "regressed"
	HoldDryRun       Hold = "dry_run"
)

// AllHolds returns all holds, for metrics that begin at zero.
func AllHolds() []Hold {
	return []Hold{HoldStarting, HoldDisconnected, HoldAlarm, HoldStorm, HoldRegressed, HoldDryRun}
}

// Signals are the input of the holds, together with Pressure. Times are by the daemon's
// monotonic clock; zero means never.
type Signals struct {
	// ListedAt is when the first listing of this history of etcd ended. History is the
	// number of times that another history began.
	ListedAt time.Time
	History  int
	// Connected reports whether a watch is up. LastSign is when it last showed an event or
	// a progress notice.
	Connected bool
	LastSign  time.Time
	// Probed reports whether the newest probe was answered; ProbeErr is its error if it was
	// not. Alarms are the alarms of etcd.
	Probed   bool
	ProbeErr error
	Alarms   []string
	// Overdue reports whether a probe is overdue, so that holders may be unable to renew at
	// present.
	Overdue bool
}

// Pressure is how many locks are due.
type Pressure struct {
	// CameDue is the number of locks that came due within the window of a storm, without
	// those that were past their deadline when a listing found them.
	CameDue int
	// Dated is the number of locks with a deadline, Backlog that of locks that are due and
	// still exist.
	Dated, Backlog int
}

// StormRules define a storm: so many locks come due at once that a fault between their holders
// and etcd is more probable than the death of all these holders.
type StormRules struct {
	// MinLocks is the minimum number of locks; 0 disables storms. Fraction is the fraction
	// of all dated locks that they must exceed. Hold is how long a storm lasts.
	MinLocks int
	Fraction float64
	Hold     time.Duration
}

// HoldRules are the part of the configuration on which holds depend.
type HoldRules struct {
	Settle, Freshness time.Duration
	Storm             StormRules
	DryRun            bool
}

// Holds is the state machine of the holds. It is not safe for concurrent use.
type Holds struct {
	rules HoldRules
	// disconnectedAt and alarmedAt are when Update last found etcd disconnected, or with an
	// alarm.
	disconnectedAt, alarmedAt time.Time
	// stormUntil is when the present storm ends. clearing is set after a storm until the
	// backlog is back at backlogBefore, its size before the storm. That need not be zero, as
	// the backlog includes locks that cannot be removed.
	stormUntil    time.Time
	clearing      bool
	backlogBefore int
}

// NewHolds returns the state machine in its initial state.
func NewHolds(rules HoldRules) *Holds { return &Holds{rules: rules} }

// Update returns the holds in force at now, each with its reason. now must not decrease between
// calls.
func (h *Holds) Update(now time.Time, s Signals, p Pressure) map[Hold]string {
	holds := make(map[Hold]string)
	h.listing(now, s, holds)
	if reason := disconnected(now, s, h.rules.Freshness); reason != "" {
		h.disconnectedAt = now
		holds[HoldDisconnected] = reason
	} else if h.settling(now, h.disconnectedAt) {
		holds[HoldDisconnected] = "settling after the connection to etcd was restored"
	}
	if len(s.Alarms) > 0 {
		h.alarmedAt = now
		holds[HoldAlarm] = "etcd raised the alarm " + strings.Join(s.Alarms, ", ")
	} else if h.settling(now, h.alarmedAt) {
		holds[HoldAlarm] = "settling after an alarm of etcd"
	}
	if h.storm(now, p) {
		holds[HoldStorm] = "many locks came due at once"
	}
	if h.rules.DryRun {
		holds[HoldDryRun] = "reaper.mode is dry-run"
	}
	return holds
}

func (h *Holds) settling(now, bad time.Time) bool {
	return !bad.IsZero() && now.Sub(bad) < h.rules.Settle
}

func (h *Holds) listing(now time.Time, s Signals, holds map[Hold]string) {
	hold, reason := HoldStarting, "settling after the first listing"
	if s.History > 0 {
		hold, reason = HoldRegressed, "settling after etcd showed another history"
	}
	switch {
	case s.ListedAt.IsZero():
		holds[hold] = "the locks are not listed yet"
	case h.settling(now, s.ListedAt):
		holds[hold] = reason
	}
}

// maxReason is the maximum length of an error in a reason, in bytes.
const maxReason = 500

// disconnected returns the reason why renewals may not reach etcd, or may not be observed here,
// or "".
func disconnected(now time.Time, s Signals, freshness time.Duration) string {
	switch {
	case !s.Connected:
		return "the watch is down"
	case now.Sub(s.LastSign) > freshness:
		return "the watch shows neither an event nor a progress notice"
	case !s.Probed && s.ProbeErr != nil:
		return "the probe fails: " + lock.Clip([]byte(s.ProbeErr.Error()), maxReason)
	case !s.Probed:
		return "the probe fails"
	}
	return ""
}

// storm reports whether a storm is in progress at now.
func (h *Holds) storm(now time.Time, p Pressure) bool {
	if now.Before(h.stormUntil) {
		return true
	}
	if !h.stormUntil.IsZero() {
		h.stormUntil, h.clearing = time.Time{}, true
	}
	if h.clearing && p.Backlog > h.backlogBefore {
		return false
	}
	h.clearing = false
	r := h.rules.Storm
	if r.MinLocks == 0 || p.CameDue < r.MinLocks || float64(p.CameDue) <= r.Fraction*float64(p.Dated) {
		h.backlogBefore = p.Backlog
		return false
	}
	h.stormUntil = now.Add(r.Hold)
	return true
}
