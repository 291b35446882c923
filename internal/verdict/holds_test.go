package verdict_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// fixture is a state machine of the holds, with a clock that a test moves.
type fixture struct {
	*testing.T
	holds   *verdict.Holds
	now     time.Time
	signals verdict.Signals
}

// newFixture is long after a start, with nothing wrong.
func newFixture(t *testing.T, edits ...func(*verdict.Rules)) *fixture {
	t.Helper()
	r := verdict.Rules{Reaper: config.Reaper{Settle: settle, Freshness: 10 * time.Second}}
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
	found := f.holds.Update(f.now, f.signals)
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
		"both":  {"the probe fails: no quorum", func(s *verdict.Signals) { s.Connected, s.Probed, s.ProbeErr = false, false, errors.New("no quorum") }},
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
			f.after(time.Minute, verdict.HoldDisconnected) // back only now: nobody has looked before
			f.after(settle-1, verdict.HoldDisconnected)
			require.Contains(t, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected], "settling")
			f.after(1)
		})
	}
}

// Holders may be unable to renew. One that is answered late has not failed: it needs no settle.
func TestS3_DisconnectedWhileAProbeIsOverdue(t *testing.T) {
	f := newFixture(t)
	f.after(0)
	f.signals.Good, f.signals.Overdue = f.now, true
	f.after(3*time.Second, verdict.HoldDisconnected)
	want := "etcd answered no probe that began after " + f.signals.Good.Format(time.TimeOnly)
	require.Equal(t, want, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected])
	f.signals.Overdue = false
	f.after(0)
	f.signals.Overdue, f.signals.Alarms = true, []string{"NOSPACE"}
	f.after(0, verdict.HoldAlarm)
	f.signals.Alarms = nil
	f.after(0, verdict.HoldDisconnected, verdict.HoldAlarm)
	f.after(settle, verdict.HoldDisconnected)
	f.signals.Failed = f.now
	f.after(0, verdict.HoldDisconnected)
	f.signals.Overdue = false
	f.after(settle-1, verdict.HoldDisconnected)
	f.after(1)
}

func TestAnErrorBeforeAGoodProbeIsNoHold(t *testing.T) {
	f := newFixture(t)
	f.signals.ProbeErr = errors.New("no quorum")
	f.after(0)
}

func TestS3_DisconnectedWhereTheWatchIsSilent(t *testing.T) {
	f := newFixture(t)
	f.now = f.signals.LastSign.Add(10 * time.Second)
	f.require()
	f.now = f.now.Add(1)
	require.Contains(t, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected], "neither an event nor a progress notice")
	f.after(1, verdict.HoldDisconnected)
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
	f.after(time.Second, verdict.HoldDisconnected)
	f.after(settle-1, verdict.HoldDisconnected)
	f.after(1)
}

// Nobody knows until when they lasted.
func TestS3_WhatBeganAndEndedBetweenTwoLooksSettlesFromTheSecond(t *testing.T) {
	for name, c := range map[string]struct {
		at   func(*verdict.Signals) *time.Time
		hold verdict.Hold
	}{
		"probe": {func(s *verdict.Signals) *time.Time { return &s.Failed }, verdict.HoldDisconnected},
		"watch": {func(s *verdict.Signals) *time.Time { return &s.Lost }, verdict.HoldDisconnected},
		"alarm": {func(s *verdict.Signals) *time.Time { return &s.Alarmed }, verdict.HoldAlarm},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for range 2 {
				f.after(time.Minute)
				*c.at(&f.signals) = f.now.Add(time.Second)
				f.after(8*time.Second, c.hold)
				f.after(settle-1, c.hold)
				f.after(1)
			}
		})
	}
}

func TestS3_AlarmUntilSettledAfterItIsDisarmed(t *testing.T) {
	f := newFixture(t)
	f.signals.Alarms = []string{"NOSPACE", "CORRUPT"}
	f.after(time.Hour, verdict.HoldAlarm)
	require.Contains(t, f.require(verdict.HoldAlarm)[verdict.HoldAlarm], "NOSPACE, CORRUPT")
	f.signals.Alarms = nil
	f.after(time.Minute, verdict.HoldAlarm)
	f.after(settle-1, verdict.HoldAlarm)
	f.after(1)
}

func TestS3_HoldsAtOnce(t *testing.T) {
	f := newFixture(t, func(r *verdict.Rules) { r.Mode = verdict.DryRun })
	f.signals.ListedAt, f.signals.Connected, f.signals.Alarms = time.Time{}, false, []string{"NOSPACE"}
	f.after(0, verdict.HoldStarting, verdict.HoldDisconnected, verdict.HoldAlarm, verdict.HoldDryRun)
}

// What a hold does is declared, not known to those that show it.
func TestKindsOfHolds(t *testing.T) {
	want := map[verdict.Hold]verdict.Kind{
		verdict.HoldStarting:     {Severity: verdict.Warn, Stops: true, AtStart: true},
		verdict.HoldDisconnected: {Severity: verdict.Bad, Stops: true, AtStart: true},
		verdict.HoldAlarm:        {Severity: verdict.Bad, Stops: true},
		verdict.HoldRegressed:    {Severity: verdict.Bad, Stops: true},
		verdict.HoldPaused:       {Severity: verdict.Warn, Stops: true, AtStart: true},
		verdict.HoldDryRun:       {Severity: verdict.Info, AtStart: true},
		"of a newer daemon":      {Severity: verdict.Bad, Stops: true},
	}
	for hold, k := range want {
		got := hold.Kind()
		require.Equal(t, hold, got.Hold)
		require.Equal(t, []any{k.Severity, k.Stops, k.AtStart}, []any{got.Severity, got.Stops, got.AtStart}, hold)
	}
	require.Len(t, want, len(verdict.AllHolds())+1)
}
