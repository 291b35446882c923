package reaper

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// The signals are read under the mutex. Otherwise a reading that takes long would end a hold that
// another one began meanwhile.
func TestS3_ReadingsOfTheSignalsCountInTheirOrder(t *testing.T) {
	var g *gate
	readings := 0
	g = newGate(verdict.Rules{Reaper: config.Reaper{Freshness: time.Minute}}, func() verdict.Signals {
		readings++
		if g.mu.TryLock() {
			defer g.mu.Unlock()
			t.Error("another reading may overtake this one")
		}
		return verdict.Signals{Paused: "paused by ada"}
	}, slog.New(slog.DiscardHandler))
	require.False(t, g.open())
	require.Equal(t, 1, readings)
	require.Equal(t, verdict.HoldPaused, g.holds()[len(g.holds())-1].Hold)
}

// Each history of etcd opens the gate again, once.
func TestS3_TheGateOpensOnceInEachHistory(t *testing.T) {
	s := verdict.Signals{ListedAt: time.Now().Add(-time.Hour), Connected: true, LastSign: time.Now(), Probed: true}
	g := newGate(verdict.Rules{Reaper: config.Reaper{Mode: verdict.Enforce, Freshness: time.Minute}}, func() verdict.Signals { return s }, slog.New(slog.DiscardHandler))
	require.True(t, g.open())
	first := g.since()
	s.History = 1
	require.True(t, g.open())
	require.Equal(t, 1, g.seen())
	second := g.since()
	require.True(t, second.After(first))
	require.True(t, g.open())
	require.Equal(t, second, g.since())
}

// What is wrong is a warning, unless it is a part of each start. The times are those of the API.
func TestS3_AHoldThatIsBadIsAWarning(t *testing.T) {
	var s verdict.Signals
	log := &bytes.Buffer{}
	g := newGate(verdict.Rules{Reaper: config.Reaper{Mode: verdict.Enforce, Freshness: time.Minute}}, func() verdict.Signals { return s },
		slog.New(slog.NewTextHandler(log, nil)))
	said := func(edit func()) string {
		log.Reset()
		edit()
		g.open()
		return log.String()
	}
	starting := said(func() { s.Alarms = []string{"NOSPACE"} })
	require.Regexp(t, `level=INFO msg="`+api.LogHoldBegins+`" hold=starting`, starting)
	require.Regexp(t, `level=INFO msg="`+api.LogHoldBegins+`" hold=disconnected`, starting)
	require.Regexp(t, `level=WARN msg="`+api.LogHoldBegins+`" hold=alarm`, starting)
	for _, h := range g.holds() {
		require.Equal(t, time.UTC, h.Since.Location())
	}
	now := time.Now()
	said(func() {
		s = verdict.Signals{ListedAt: now.Add(-time.Hour), Connected: true, LastSign: now, Probed: true}
	})
	require.Regexp(t, `level=WARN msg="`+api.LogHoldBegins+`" hold=disconnected`, said(func() { s.Connected = false }))
	require.Regexp(t, `level=INFO msg="`+api.LogHoldBegins+`" hold=paused`, said(func() { s.Paused = "paused by ada" }))
	g.machine = verdict.NewHolds(verdict.Rules{Reaper: config.Reaper{Mode: verdict.DryRun, Freshness: time.Minute}})
	require.Regexp(t, `level=INFO msg="`+api.LogDryRun+`" hold=dry_run`, said(func() {}))
}

// A step of our wall clock, such as a correction by NTP soon after boot, neither ends settling early
// nor begins it again: the times of the holds have a monotonic reading, which String shows.
func TestS3_HoldsFollowTheMonotonicClock(t *testing.T) {
	g := newGate(verdict.Rules{}, func() verdict.Signals { return verdict.Signals{Paused: "paused by ada"} }, slog.New(slog.DiscardHandler))
	require.False(t, g.open())
	require.Contains(t, g.active[verdict.HoldPaused].Since.String(), " m=")
}
