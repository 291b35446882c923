package reaper

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A reading of the signals that takes long ends no hold that began meanwhile.
func TestS3_ReadingsOfTheSignalsCountInTheirOrder(t *testing.T) {
	paused, reading, release := "", make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() {
		close(reading)
		<-release
	})
	g := newGate(verdict.HoldRules{Freshness: time.Minute}, func() verdict.Signals {
		now := time.Now()
		s := verdict.Signals{ListedAt: now.Add(-time.Hour), Connected: true, LastSign: now, Probed: true, Paused: paused}
		if s.Paused == "" {
			first()
		}
		return s
	}, slog.New(slog.DiscardHandler))
	var both sync.WaitGroup
	both.Go(func() { g.open() })
	<-reading
	paused = "paused by ada"
	both.Go(func() { g.open() })
	<-time.After(50 * time.Millisecond) // in which the second reading could pass the first one
	close(release)
	both.Wait()
	require.Contains(t, g.holds(), verdict.HoldPaused)
}
