package verdict

import (
	"fmt"
	"slices"
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

// Severity is how bad a hold is.
type Severity string

// The severities, with their names on the dashboard.
const (
	Bad  Severity = "bad"  // something is wrong
	Warn Severity = "warn" // it ends by itself, or a user asked for it
	Info Severity = "info" // it is configured
)

// Kind is the declaration of a hold: all that the log, the metrics, the API, the dashboard and
// unlocker check have to know of it.
type Kind struct {
	Hold     Hold
	Severity Severity
	// Stops reports whether it stops removals. Where it does not, verdicts are made, and each says
	// itself what keeps its lock.
	Stops bool
	// AtStart reports whether it is expected while HoldStarting is in force.
	AtStart bool
	// reason returns why it is in force, or "". It is called after the troubles were updated.
	reason func(h *Holds, now time.Time, s Signals) string
}

// kinds declares the holds. They are shown in this order.
func kinds() [6]Kind {
	return [...]Kind{
		{HoldStarting, Warn, true, true, (*Holds).starting},
		{HoldDisconnected, Bad, true, true, (*Holds).disconnected},
		{HoldAlarm, Bad, true, false, (*Holds).alarm},
		{HoldRegressed, Bad, true, false, (*Holds).regressed},
		{HoldPaused, Warn, true, true, func(_ *Holds, _ time.Time, s Signals) string { return s.Paused }},
		{HoldDryRun, Info, false, true, (*Holds).dryRun},
	}
}

// Kind returns the declaration of a hold. One that is not declared, as another version of the
// daemon may report it, is as bad as any and stops removals.
func (h Hold) Kind() Kind {
	for _, k := range kinds() {
		if k.Hold == h {
			return k
		}
	}
	return Kind{Hold: h, Severity: Bad, Stops: true}
}

// AllHolds returns the declared holds in their order.
func AllHolds() (all []Hold) {
	for _, k := range kinds() {
		all = append(all, k.Hold)
	}
	return all
}

// Signals are what the holds depend on. Times are by our monotonic clock, zero means never.
type Signals struct {
	// ListedAt is when the first listing of this history of etcd ended. History is the
	// number of times that etcd was restored or diverged.
	ListedAt time.Time
	History  int
	// Connected reports whether a watch is up. LastSign is when it last showed an event or
	// a progress notice, Lost when one last ended.
	Connected      bool
	LastSign, Lost time.Time
	// Probed reports whether the newest probe was answered; ProbeErr is its error if it was not, and Failed when one
	// last failed. Alarms are the alarms of etcd, and Alarmed is when an answer last showed one.
	Probed          bool
	ProbeErr        error
	Alarms          []string
	Failed, Alarmed time.Time
	// Paused is who paused all removals, why and until when, in words; "" if nobody did. Unseen
	// is why the pauses are not loaded; "" if they are.
	Paused, Unseen string
	// Overdue reports whether a probe is overdue, so that holders may be unable to renew at
	// present. Good is when the last good one began.
	Overdue bool
	Good    time.Time
}

// Holds is the state machine of the holds. It is not safe for concurrent use.
type Holds struct {
	rules         Rules
	lost, alarmed trouble
	// why is the reason of lost, while it lasts.
	why string
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
func NewHolds(rules Rules) *Holds { return &Holds{rules: rules} }

// Update returns the holds that are in force at now, each with its reason in words. Calls must be in the order of time.
func (h *Holds) Update(now time.Time, s Signals) map[Hold]string {
	h.why = lost(now, s, h.rules.Freshness)
	h.lost.update(now, h.why != "", latest(s.Failed, s.Lost))
	h.alarmed.update(now, len(s.Alarms) > 0, s.Alarmed)
	holds := make(map[Hold]string)
	for _, k := range kinds() {
		if reason := k.reason(h, now, s); reason != "" {
			holds[k.Hold] = reason
		}
	}
	return holds
}

func (h *Holds) starting(now time.Time, s Signals) string {
	if s.History > 0 {
		return ""
	}
	return h.listing(now, s, "the first listing")
}

func (h *Holds) regressed(now time.Time, s Signals) string {
	if s.History == 0 {
		return ""
	}
	return h.listing(now, s, "etcd was restored, or its data diverged")
}

func (h *Holds) listing(now time.Time, s Signals, after string) string {
	if s.ListedAt.IsZero() {
		return "the locks are not listed yet"
	}
	return h.settling(now, s.ListedAt, after)
}

func (h *Holds) disconnected(now time.Time, s Signals) string {
	switch {
	case h.why != "":
		return h.why
	case s.Overdue && len(s.Alarms) == 0: // none is good during an alarm, which is a hold of its own
		return "etcd answered no probe that began after " + s.Good.UTC().Format(time.TimeOnly) // it did not fail: no need to settle
	case s.Unseen != "":
		return s.Unseen // holders can renew meanwhile: no need to settle
	}
	return h.settling(now, h.lost.last, "the connection to etcd was restored")
}

func (h *Holds) alarm(now time.Time, s Signals) string {
	if len(s.Alarms) > 0 {
		return "etcd raised the alarm " + strings.Join(s.Alarms, ", ")
	}
	return h.settling(now, h.alarmed.last, "an alarm of etcd")
}

func (h *Holds) dryRun(time.Time, Signals) string {
	if h.rules.Mode == DryRun {
		return "reaper.mode is dry-run"
	}
	return ""
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// settling says for how long holders get time to renew after something that ended at, zero for
// never. It returns "" once they have had it.
func (h *Holds) settling(now, at time.Time, after string) string {
	if at.IsZero() || now.Sub(at) >= h.rules.Settle {
		return ""
	}
	return fmt.Sprintf("settling until %s after %s", at.Add(h.rules.Settle).UTC().Format(time.TimeOnly), after)
}

// lost returns the reason why renewals may not reach etcd, or may not be observed here, or "".
func lost(now time.Time, s Signals, freshness time.Duration) string {
	const maxReason = 500 // the maximum length of an error in a reason, in bytes
	switch {
	case !s.Probed && s.ProbeErr != nil:
		return "the probe fails: " + protocol.Clip([]byte(s.ProbeErr.Error()), maxReason)
	case !s.Connected:
		return "the watch is down"
	case now.Sub(s.LastSign) > freshness:
		return "the watch shows neither an event nor a progress notice"
	case !s.Probed:
		return "the probe fails"
	}
	return ""
}
