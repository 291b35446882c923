package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// flaky is a log that fails while it is broken.
type flaky struct {
	slog.Handler
	broken bool
	// refused is a line that it never writes.
	refused string
	lines   []string
}

func (f *flaky) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (f *flaky) Handle(_ context.Context, r slog.Record) error {
	if f.broken || r.Message == f.refused {
		return errors.New("no space left on device")
	}
	f.lines = append(f.lines, r.Message)
	return nil
}

func line(msg string) slog.Record { return slog.NewRecord(time.Now(), slog.LevelInfo, msg, 0) }

// What could not be written is written before anything else, once, and in its order.
func TestS7_OutcomesAreKeptUntilTheyAreLogged(t *testing.T) {
	log := &flaky{broken: true}
	j := journal{handler: log}
	require.False(t, j.conclude(t.Context(), line("a is removed")))
	require.False(t, j.conclude(t.Context(), line("b is removed")))
	require.Error(t, j.announce(t.Context(), line("c will be removed")))
	require.True(t, j.conclude(t.Context(), slog.NewRecord(time.Now(), slog.LevelDebug, "not asked for", 0)))
	log.broken = false
	require.NoError(t, j.announce(t.Context(), line("c will be removed")))
	require.True(t, j.conclude(t.Context(), line("c is removed")))
	require.Equal(t, []string{"a is removed", "b is removed", "c will be removed", "c is removed"}, log.lines)
}

// No outcome is written before an older one.
func TestS7_OutcomesAreLoggedInTheirOrder(t *testing.T) {
	log := &flaky{refused: "a is removed"}
	j := journal{handler: log}
	require.False(t, j.conclude(t.Context(), line("a is removed")))
	require.False(t, j.conclude(t.Context(), line("b is removed")))
	require.Empty(t, log.lines)
	log.refused = ""
	require.True(t, j.conclude(t.Context(), line("c is removed")))
	require.Equal(t, []string{"a is removed", "b is removed", "c is removed"}, log.lines)
}

// They are written although nothing else is removed.
func TestS7_KeptOutcomesAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &flaky{broken: true}
		j := journal{handler: log}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- j.run(ctx) }()
		require.False(t, j.conclude(ctx, line("a is removed")))
		<-time.After(10 * journalRetry)
		synctest.Wait()
		require.Empty(t, log.lines)
		j.mu.Lock()
		log.broken = false
		j.mu.Unlock()
		<-time.After(2 * journalRetry)
		synctest.Wait()
		require.Equal(t, []string{"a is removed"}, log.lines)
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestKeptOutcomesAreBounded(t *testing.T) {
	log := &flaky{broken: true}
	j := journal{handler: log}
	for i := range maxKept + 2 {
		require.False(t, j.conclude(t.Context(), line(fmt.Sprint(i))))
	}
	log.broken = false
	require.True(t, j.conclude(t.Context(), line("last")))
	require.Len(t, log.lines, maxKept+1)
	require.Equal(t, "0", log.lines[0], "the oldest are kept")
	require.Equal(t, "last", log.lines[maxKept])
}
