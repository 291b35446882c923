package table

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// A lock that a pause keeps, or a brake, is not taken again before that changes, and is then at once.
func TestPausedUntilResume(t *testing.T) {
	for delay, braked := range map[time.Duration]int{WhilePaused: 0, WhileBraked: 1} {
		untilResume(t, delay, braked)
	}
}

func untilResume(t *testing.T, delay time.Duration, braked int) {
	var paused atomic.Bool
	inBubble(t, func(t *testing.T, w *world) {
		paused.Store(true)
		w.acquire("a", 0, 0)
		require.Len(t, w.within(time.Minute), 1)
		w.postpone("a", w.token("a"), delay)
		require.Zero(t, w.stats().Backlog)
		require.Equal(t, braked, w.stats().Braked)
		require.Equal(t, 1, w.stats().Locks[protocol.Expired])
		page, err := w.Page(w.ctx, api.Query{ByUrgency: true, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, []byte{'6', '1'}[braked], page.Items[0].Position.String()[0], "a user knows of what a pause keeps")
		require.Empty(t, w.within(time.Hour))
		require.NoError(t, w.Reschedule(w.ctx))
		require.Empty(t, w.within(time.Hour))

		require.NoError(t, w.Resume(w.ctx)) // another pause than that of the lock has changed
		require.Len(t, w.within(1), 1)
		w.postpone("a", w.token("a"), delay)
		require.Empty(t, w.within(time.Hour))

		require.NoError(t, w.Resume(w.ctx))
		require.Len(t, w.within(1), 1)
		w.postpone("a", w.token("a"), time.Second) // for another reason
		require.Len(t, w.within(time.Second), 1)
		w.postpone("a", w.token("a"), delay)

		paused.Store(false)
		require.NoError(t, w.Resume(w.ctx))
		require.Equal(t, 1, w.stats().Backlog)
		require.Zero(t, w.stats().Braked)
		require.Len(t, w.within(1), 1)
		w.postpone("a", w.token("a"), delay) // that ended between the verdict and its consequence
		require.Equal(t, 1, w.stats().Backlog)
		require.Len(t, w.within(1), 1)
		paused.Store(true)
		w.postpone("a", w.token("a"), delay)
		w.release("a")
		require.Zero(t, w.stats().Braked)
	}, func(o *Options) { o.Paused = func(string) bool { return paused.Load() } })
}

func TestNothingIsPausedByDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		require.Len(t, w.within(time.Minute), 1)
		w.postpone("a", w.token("a"), WhilePaused)
		require.Len(t, w.within(1), 1)
	})
}

// A release before the deadline is reported, with the token of the lock; one after it, or of leftovers, is not.
func TestS3_BrakeHearsOfReleasesInTime(t *testing.T) {
	var released []string
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"late", "listed", "in time"} {
			w.acquire(name, time.Minute, time.Minute)
		}
		token := w.token("in time")
		w.release("in time")
		require.Equal(t, []string{fmt.Sprint("in time ", token)}, released)
		w.live(w.put("orphan", map[string]string{"purpose": "x"}))
		w.release("orphan")
		w.del("listed")
		w.listing(true)
		require.Len(t, released, 2)
		require.Contains(t, released[1], "listed")
		w.pass(time.Minute)
		w.release("late")
		require.Len(t, released, 2)
	}, func(o *Options) {
		o.Released = func(name string, token int64) { released = append(released, fmt.Sprint(name, " ", token)) }
	})
}

// Each acquisition that the watch shows is reported, and none that a listing does.
func TestAcquisitionsAreReported(t *testing.T) {
	var acquired []string
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		w.renew("a", time.Hour, time.Hour)
		w.put("listed", fields(time.Minute, time.Minute))
		w.listing(true)
		require.Equal(t, []string{fmt.Sprint("a ", w.token("a"))}, acquired)
	}, func(o *Options) {
		o.Acquired = func(l *protocol.Lock) { acquired = append(acquired, fmt.Sprint(l.Name, " ", l.Token)) }
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
