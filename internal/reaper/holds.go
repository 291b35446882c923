package reaper

import (
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Hold is a reason why no lock is removed automatically.
type Hold string

// The holds, as metrics spell them.
const (
	HoldStarting     Hold = "starting"
	HoldDisconnected Hold = "disconnected"
	HoldAlarm        Hold = "alarm"
	HoldStorm        Hold = "storm"
	HoldRegressed    Hold = "regressed"
	HoldDryRun       Hold = "dry_run"
)

// Holds lists all holds, for metrics that are to begin at zero.
func Holds() []Hold {
	return []Hold{HoldStarting, HoldDisconnected, HoldAlarm, HoldStorm, HoldRegressed, HoldDryRun}
}

// Signals are what holds depend on beside Pressure. Times are by our monotonic
// clock, zero means never.
type Signals struct {
	// ListedAt is when the first listing of this history of etcd ended, History
	// how often another history began.
	ListedAt time.Time
	History  int
	// Connected: a watch is up; Sign is when it last showed a sign of life.
	Connected bool
	Sign      time.Time
	// Probed: the newest probe was answered; ProbeErr is why not. Alarms are those
	// that etcd raised.
	Probed   bool
	ProbeErr error
	Alarms   []string
	// Overdue: owners may be unable to renew at this moment.
	Overdue bool
}

// Pressure tells how much is due.
type Pressure struct {
	// CameDue counts the locks that came due within the storm's window, Dated
	// those with a deadline, Backlog those that are due and still there.
	CameDue, Dated, Backlog int
}

// StormRules tell when so many locks come due at once that an outage between
// owners and etcd is likelier than that many deaths.
type StormRules struct {
	// MinLocks is the least number; 0 turns it off. Fraction is of all dated
	// locks. Hold is how long a storm lasts.
	MinLocks int
	Fraction float64
	Hold     time.Duration
}

// HoldRules are the part of the configuration that holds depend on.
type HoldRules struct {
	Settle, Freshness time.Duration
	Storm             StormRules
	DryRun            bool
}

// holdState is a state machine without clock or I/O.
type holdState struct {
	HoldRules
	// apart and alarmed are when etcd, or its space, was last found wanting.
	apart, alarmed time.Time
	// storm is when the present storm ends; spent: the backlog of the last one
	// is not gone yet. Before is the backlog that there was without it: what is
	// parked, or cannot be removed, stays in it for ever.
	storm  time.Time
	spent  bool
	before int
}

// update returns the holds that are in force now, each with its reason in words.
func (h *holdState) update(now time.Time, s Signals, p Pressure) map[Hold]string {
	holds := make(map[Hold]string)
	h.listing(now, s, holds)
	if words := apart(now, s, h.Freshness); words != "" {
		h.apart = now
		holds[HoldDisconnected] = words
	} else if h.settling(now, h.apart) {
		holds[HoldDisconnected] = "settling after etcd was out of sight"
	}
	if len(s.Alarms) > 0 {
		h.alarmed = now
		holds[HoldAlarm] = "etcd raised " + strings.Join(s.Alarms, ", ")
	} else if h.settling(now, h.alarmed) {
		holds[HoldAlarm] = "settling after an alarm of etcd"
	}
	if h.stormy(now, p) {
		holds[HoldStorm] = "many locks came due at once"
	}
	if h.DryRun {
		holds[HoldDryRun] = "reaper.mode is dry-run"
	}
	return holds
}

func (h *holdState) settling(now, bad time.Time) bool {
	return !bad.IsZero() && now.Sub(bad) < h.Settle
}

func (h *holdState) listing(now time.Time, s Signals, holds map[Hold]string) {
	hold, words := HoldStarting, "settling after the first listing"
	if s.History > 0 {
		hold, words = HoldRegressed, "settling after etcd showed another history"
	}
	switch {
	case s.ListedAt.IsZero():
		holds[hold] = "the locks are not listed yet"
	case h.settling(now, s.ListedAt):
		holds[hold] = words
	}
}

// maxReason bounds what is repeated of an error.
const maxReason = 500

// apart tells why renewals may not reach etcd, or not be seen by us; "" if they
// do.
func apart(now time.Time, s Signals, freshness time.Duration) string {
	switch {
	case !s.Connected:
		return "the watch is down"
	case now.Sub(s.Sign) > freshness:
		return "the watch shows no sign of life"
	case !s.Probed && s.ProbeErr != nil:
		return "the probe fails: " + lock.Clip([]byte(s.ProbeErr.Error()), maxReason)
	case !s.Probed:
		return "the probe fails"
	}
	return ""
}

func (h *holdState) stormy(now time.Time, p Pressure) bool {
	if now.Before(h.storm) {
		return true
	}
	if !h.storm.IsZero() {
		h.storm, h.spent = time.Time{}, true
	}
	if h.spent && p.Backlog > h.before {
		return false
	}
	h.spent = false
	r := h.Storm
	if r.MinLocks == 0 || p.CameDue < r.MinLocks || float64(p.CameDue) <= r.Fraction*float64(p.Dated) {
		h.before = p.Backlog
		return false
	}
	h.storm = now.Add(r.Hold)
	return true
}
