package reaper

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// A step of our wall clock, such as a correction by NTP soon after boot, neither ends settling early
// nor begins it again: the times of the holds have a monotonic reading, which String shows.
func TestS3_HoldsFollowTheMonotonicClock(t *testing.T) {
	g := newGate(verdict.Rules{}, func() verdict.Signals { return verdict.Signals{Paused: "paused by ada"} }, slog.New(slog.DiscardHandler))
	require.False(t, g.open())
	require.Contains(t, g.active[verdict.HoldPaused].Since.String(), " m=")
}
