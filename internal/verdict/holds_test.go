package verdict_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// fixture is a state machine of the holds, with a clock that a test moves.
type fixture struct {
	*testing.T
	holds    *verdict.Holds
	now      time.Time
	signals  verdict.Signals
	pressure verdict.Pressure
}

// newFixture is long after a start, with nothing wrong.
func newFixture(t *testing.T, edits ...func(*verdict.HoldRules)) *fixture {
	t.Helper()
	r := verdict.HoldRules{Settle: settle, Freshness: 10 * time.Second,
		Storm: verdict.StormRules{MinLocks: 100, Fraction: 0.5, Hold: 2 * time.Minute}}
	for _, edit := range edits {
		edit(&r)
	}
	return &fixture{T: t, holds: verdict.NewHolds(r), now: past,
		signals: verdict.Signals{ListedAt: past.Add(-time.Hour), LastSign: past, Connected: true, Probed: true}}
}

// after lets time pass, in which the watch shows progress for as long as it is
// connected, and requires these holds.
func (f *fixture) after(d time.Duration, want ...verdict.Hold) {
	f.Helper()
	if f.now = f.now.Add(d); f.signals.Connected {
		f.signals.LastSign = f.now
	}
	f.require(want...)
}

// require returns the holds with their reasons.
func (f *fixture) require(want ...verdict.Hold) map[verdict.Hold]string {
	f.Helper()
	found := f.holds.Update(f.now, f.signals, f.pressure)
	require.ElementsMatch(f, want, slices.Collect(maps.Keys(found)))
	for hold, reason := range found {
		require.Contains(f, verdict.AllHolds(), hold)
		require.NotEmpty(f, reason)
	}
	return found
}

func TestS3_StartingUntilSettledAfterTheListing(t *testing.T) {
	f := newFixture(t)
	f.signals.ListedAt = time.Time{}
	f.after(time.Hour, verdict.HoldStarting)
	f.signals.ListedAt = f.now
	f.after(0, verdict.HoldStarting)
	f.after(settle-1, verdict.HoldStarting)
	f.after(1)
}

// Restored from a snapshot: another listing, and another name for the hold.
func TestS3_RegressedUntilSettledAfterTheNewListing(t *testing.T) {
	f := newFixture(t)
	f.after(0)
	f.signals.ListedAt, f.signals.History = time.Time{}, 1
	f.after(time.Second, verdict.HoldRegressed)
	f.signals.ListedAt = f.now
	f.after(settle-1, verdict.HoldRegressed)
	f.after(1)
	f.signals.ListedAt, f.signals.History = time.Time{}, 2
	f.after(time.Hour, verdict.HoldRegressed)
}

func TestS3_DisconnectedUntilSettledAfterItIsBack(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for name, c := range map[string]struct {
		reason string
		fail   func(*verdict.Signals)
	}{
		"watch": {"the watch is down", func(s *verdict.Signals) { s.Connected = false }},
		"probe": {"the probe fails", func(s *verdict.Signals) { s.Probed = false }},
		"error": {"the probe fails: no quorum", func(s *verdict.Signals) { s.Probed, s.ProbeErr = false, errors.New("no quorum") }},
		"long":  {"the probe fails: " + long[:500] + "…", func(s *verdict.Signals) { s.Probed, s.ProbeErr = false, errors.New(long) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			well := f.signals
			f.after(0)
			c.fail(&f.signals)
			f.after(time.Second, verdict.HoldDisconnected)
			require.Equal(t, c.reason, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected])
			f.after(time.Hour, verdict.HoldDisconnected)
			f.signals = well
			f.after(settle-1, verdict.HoldDisconnected)
			require.Contains(t, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected], "settling")
			f.after(1)
		})
	}
}

func TestS3_DisconnectedWhereTheWatchIsSilent(t *testing.T) {
	f := newFixture(t)
	f.now = f.signals.LastSign.Add(10 * time.Second)
	f.require()
	f.now = f.now.Add(1)
	require.Contains(t, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected], "neither an event nor a progress notice")
	f.after(settle-1, verdict.HoldDisconnected)
	f.after(1)
	f.signals.LastSign = time.Time{}
	f.require(verdict.HoldDisconnected)
}

// Both must be back, and what fails in between restarts the settling.
func TestS3_DisconnectedSettlesFromTheLastFailure(t *testing.T) {
	f := newFixture(t)
	f.signals.Connected, f.signals.Probed = false, false
	f.after(time.Second, verdict.HoldDisconnected)
	f.signals.Connected = true
	f.after(time.Minute, verdict.HoldDisconnected)
	f.signals.Probed = true
	f.after(10*time.Second, verdict.HoldDisconnected)
	f.signals.Probed = false
	f.after(time.Second, verdict.HoldDisconnected)
	f.signals.Probed = true
	f.after(settle-1, verdict.HoldDisconnected)
	f.after(1)
}

func TestS3_AlarmUntilSettledAfterItIsDisarmed(t *testing.T) {
	f := newFixture(t)
	f.signals.Alarms = []string{"NOSPACE", "CORRUPT"}
	f.after(time.Hour, verdict.HoldAlarm)
	require.Contains(t, f.require(verdict.HoldAlarm)[verdict.HoldAlarm], "NOSPACE, CORRUPT")
	f.signals.Alarms = nil
	f.after(settle-1, verdict.HoldAlarm)
	f.after(1)
}

func TestS3_HoldsAtOnce(t *testing.T) {
	f := newFixture(t, func(r *verdict.HoldRules) { r.DryRun = true })
	f.signals.ListedAt, f.signals.Connected, f.signals.Alarms = time.Time{}, false, []string{"NOSPACE"}
	f.pressure = verdict.Pressure{CameDue: 100, Dated: 100, Backlog: 100}
	f.after(0, verdict.HoldStarting, verdict.HoldDisconnected, verdict.HoldAlarm, verdict.HoldStorm, verdict.HoldDryRun)
}

func TestS3_StormBeginsWithSoManyOfAll(t *testing.T) {
	for name, c := range map[string]struct {
		pressure verdict.Pressure
		min      int
		want     []verdict.Hold
	}{
		"all":                {verdict.Pressure{CameDue: 100, Dated: 100, Backlog: 100}, 100, []verdict.Hold{verdict.HoldStorm}},
		"too few":            {verdict.Pressure{CameDue: 99, Dated: 99, Backlog: 99}, 100, nil},
		"half":               {verdict.Pressure{CameDue: 100, Dated: 200, Backlog: 100}, 100, nil},
		"more than half":     {verdict.Pressure{CameDue: 101, Dated: 201, Backlog: 101}, 100, []verdict.Hold{verdict.HoldStorm}},
		"many, of many more": {verdict.Pressure{CameDue: 10_000, Dated: 100_000, Backlog: 10_000}, 100, nil},
		"off":                {verdict.Pressure{CameDue: 10_000, Dated: 10_000, Backlog: 10_000}, 0, nil},
		"one":                {verdict.Pressure{CameDue: 1, Dated: 1, Backlog: 1}, 1, []verdict.Hold{verdict.HoldStorm}},
		"removed already":    {verdict.Pressure{CameDue: 100}, 100, []verdict.Hold{verdict.HoldStorm}},
		"backlog of a start": {verdict.Pressure{Dated: 1_000, Backlog: 1_000}, 100, nil},
		"nothing, off":       {verdict.Pressure{}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(r *verdict.HoldRules) { r.Storm.MinLocks = c.min })
			f.after(0)
			f.pressure = c.pressure
			f.after(time.Second, c.want...)
		})
	}
}

func TestS3_StormEndsAndWaitsForItsBacklog(t *testing.T) {
	f := newFixture(t)
	f.pressure = verdict.Pressure{CameDue: 50, Dated: 1_000, Backlog: 7} // which cannot be removed
	f.after(time.Second)
	f.pressure = verdict.Pressure{CameDue: 600, Dated: 1_000, Backlog: 607}
	f.after(0, verdict.HoldStorm)
	f.pressure.CameDue = 0
	f.after(2*time.Minute-1, verdict.HoldStorm)
	f.pressure = verdict.Pressure{CameDue: 1_000, Dated: 1_000, Backlog: 1_007}
	f.after(1)
	for f.pressure.Backlog > 8 { // it is removed, and others come due
		f.pressure.Backlog--
		f.after(time.Second)
	}
	f.pressure = verdict.Pressure{Dated: 1_000, Backlog: 7}
	f.after(time.Second)
	f.pressure = verdict.Pressure{CameDue: 600, Dated: 1_000, Backlog: 607}
	f.after(time.Second, verdict.HoldStorm)
	f.after(2 * time.Minute)
}

func TestS3_StormLastsWhateverHappens(t *testing.T) {
	f := newFixture(t)
	f.pressure = verdict.Pressure{CameDue: 100, Dated: 100, Backlog: 100}
	f.after(0, verdict.HoldStorm)
	f.pressure = verdict.Pressure{}
	f.after(2*time.Minute-1, verdict.HoldStorm)
	f.after(1)
}
