package verdict

import (
	"fmt"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Hold is a reason why no lock is removed automatically.
type Hold string

// The holds, with their names in metrics.
const (
	HoldStarting     Hold = "starting"
	HoldDisconnected Hold = "disconnected"
	HoldAlarm        Hold = "alarm"
	HoldRegressed    Hold = "regressed"
	HoldPaused       Hold = "paused"
	HoldDryRun       Hold = "dry_run"
)

// AllHolds returns all holds, for metrics that begin at zero.
func AllHolds() []Hold {
	return []Hold{HoldStarting, HoldDisconnected, HoldAlarm, HoldRegressed, HoldPaused, HoldDryRun}
}

// Signals are what the holds depend on. Times are by our
// monotonic clock, zero means never.
type Signals struct {
	// ListedAt is when the first listing of this history of etcd ended. History is the
	// number of times that another history began.
	ListedAt time.Time
	History  int
	// Connected reports whether a watch is up. LastSign is when it last showed an event or
	// a progress notice, Lost when one last ended.
	Connected      bool
	LastSign, Lost time.Time
	// Probed reports whether the newest probe was answered; ProbeErr is its error if it was
	// not, and Failed when one last failed. Alarms are the alarms of etcd, and Alarmed is
	// when an answer last showed one.
	Probed          bool
	ProbeErr        error
	Alarms          []string
	Failed, Alarmed time.Time
	// Paused is who paused all removals, why and until when, in words; "" if nobody did. Unseen
	// is why the pauses are not in view; "" if they are.
	Paused, Unseen string
	// Overdue reports whether a probe is overdue, so that holders may be unable to renew at
	// present.
	Overdue bool
}

// HoldRules are the part of the configuration that holds depend on.
type HoldRules struct {
	Settle, Freshness time.Duration
	DryRun            bool
}

// Holds is the state machine of the holds. It is not safe for concurrent use.
type Holds struct {
	rules                 HoldRules
	disconnected, alarmed trouble
}

// trouble is a state of etcd that needs settle when it is over.
type trouble struct {
	now bool // whether it lasts
	// last is when it was last found or, if it is over, first found to be over.
	last time.Time
}

// update notes whether it lasts, and when it was last recorded, which may have been between two calls.
func (t *trouble) update(now time.Time, wrong bool, recorded time.Time) {
	if wrong || t.now || recorded.After(t.last) {
		t.last = now
	}
	t.now = wrong
}

// NewHolds returns the state machine in its initial state.
func NewHolds(rules HoldRules) *Holds { return &Holds{rules: rules} }

// Update returns the holds that are in force at now, each with its reason in
// words. Calls must be in the order of time.
func (h *Holds) Update(now time.Time, s Signals) map[Hold]string {
	holds := make(map[Hold]string)
	h.listing(now, s, holds)
	reason := disconnected(now, s, h.rules.Freshness)
	h.disconnected.update(now, reason != "", latest(s.Failed, s.Lost))
	h.alarmed.update(now, len(s.Alarms) > 0, s.Alarmed)
	if reason != "" {
		holds[HoldDisconnected] = reason
	} else if s.Unseen != "" {
		holds[HoldDisconnected] = s.Unseen // holders can renew meanwhile: no need to settle
	} else if h.settling(now, h.disconnected.last) {
		holds[HoldDisconnected] = h.until(h.disconnected.last, "the connection to etcd was restored")
	}
	if len(s.Alarms) > 0 {
		holds[HoldAlarm] = "etcd raised the alarm " + strings.Join(s.Alarms, ", ")
	} else if h.settling(now, h.alarmed.last) {
		holds[HoldAlarm] = h.until(h.alarmed.last, "an alarm of etcd")
	}
	if s.Paused != "" {
		holds[HoldPaused] = s.Paused
	}
	if h.rules.DryRun {
		holds[HoldDryRun] = "reaper.mode is dry-run"
	}
	return holds
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (h *Holds) settling(now, bad time.Time) bool {
	return !bad.IsZero() && now.Sub(bad) < h.rules.Settle
}

// until says for how long holders get time to renew after something, which ended at.
func (h *Holds) until(at time.Time, after string) string {
	return fmt.Sprintf("settling until %s after %s", at.Add(h.rules.Settle).UTC().Format(time.TimeOnly), after)
}

func (h *Holds) listing(now time.Time, s Signals, holds map[Hold]string) {
	hold, after := HoldStarting, "the first listing"
	if s.History > 0 {
		hold, after = HoldRegressed, "etcd showed another history"
	}
	switch {
	case s.ListedAt.IsZero():
		holds[hold] = "the locks are not listed yet"
	case h.settling(now, s.ListedAt):
		holds[hold] = h.until(s.ListedAt, after)
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
		return "the probe fails: " + protocol.Clip([]byte(s.ProbeErr.Error()), maxReason)
	case !s.Probed:
		return "the probe fails"
	}
	return ""
}
