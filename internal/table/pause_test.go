package table

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// A lock that a pause keeps is not taken again before the pauses change, and is then at once.
func TestPausedUntilResume(t *testing.T) {
	var paused atomic.Bool
	inBubble(t, func(t *testing.T, w *world) {
		paused.Store(true)
		w.acquire("a", 0, 0)
		require.Len(t, w.within(time.Minute), 1)
		w.postpone("a", w.token("a"), WhilePaused)
		require.Zero(t, w.stats().Backlog)
		require.Equal(t, 1, w.stats().Locks[protocol.Expired])
		require.Empty(t, w.within(time.Hour))
		require.NoError(t, w.Reschedule(w.ctx))
		require.Empty(t, w.within(time.Hour))

		require.NoError(t, w.Resume(w.ctx)) // another pause than that of the lock has changed
		require.Len(t, w.within(1), 1)
		w.postpone("a", w.token("a"), WhilePaused)
		require.Empty(t, w.within(time.Hour))

		paused.Store(false)
		require.NoError(t, w.Resume(w.ctx))
		require.Equal(t, 1, w.stats().Backlog)
		require.Len(t, w.within(1), 1)
	}, func(o *Options) { o.Paused = func(string) bool { return paused.Load() } })
}

// The pause ends between the verdict and its consequence.
func TestAPauseThatEndedKeepsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		require.Len(t, w.within(time.Minute), 1)
		require.NoError(t, w.Resume(w.ctx))
		w.postpone("a", w.token("a"), WhilePaused)
		require.Equal(t, 1, w.stats().Backlog)
		require.Len(t, w.within(1), 1)
	})
}

func TestAPausedLockThatIsRenewedIsDueAsAnyOther(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		require.Len(t, w.within(time.Minute), 1)
		w.postpone("a", w.token("a"), WhilePaused)
		w.live(w.put("a", map[string]string{"purpose": "x"}))
		require.Empty(t, w.within(time.Hour), "that changes nothing")
		w.live(w.put("a", deadline(time.Second)))
		require.Len(t, w.within(time.Hour), 1)
		w.postpone("a", w.token("a"), WhilePaused)
		w.release("a")
		require.NoError(t, w.Resume(w.ctx))
		require.Empty(t, w.within(time.Hour))
	}, func(o *Options) { o.Paused = func(string) bool { return true } })
}
