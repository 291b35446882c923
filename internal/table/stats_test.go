package table

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestStatsListTheLongestOverdueFirstAndCapped(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 20 {
			w.acquire(fmt.Sprint(i), -time.Duration((i*7)%20+1)*time.Second, time.Hour)
		}
		w.acquire("held", time.Minute, time.Hour)
		s, err := w.Stats(w.ctx, 3)
		require.NoError(t, err)
		require.Equal(t, 20, s.OverdueTotal)
		require.Equal(t, [protocol.NumStates]int{protocol.Held: 1, protocol.Overdue: 20}, s.Locks)
		require.Len(t, s.Overdue, 3)
		for i, l := range s.Overdue {
			require.Equal(t, present().Add(-time.Duration(20-i)*time.Second).UTC(), l.AlertAt().Time())
		}
		s, err = w.Stats(w.ctx, 100)
		require.NoError(t, err)
		require.Len(t, s.Overdue, 20)
		s, err = w.Stats(w.ctx, 0)
		require.NoError(t, err)
		require.Empty(t, s.Overdue)
		time.Sleep(time.Minute)
		s, err = w.Stats(w.ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 21, s.OverdueTotal, "as of now, not of the last event")
	})
}

// Whoever shows locks looks again only if there is something new.
func TestChangedIsSignalled(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		changed := func() bool {
			synctest.Wait()
			select {
			case <-w.Changed():
				return true
			default:
				return false
			}
		}
		w.live(nil)
		require.False(t, changed())
		w.acquire("a", time.Minute, time.Hour)
		w.acquire("b", time.Minute, time.Hour)
		require.True(t, changed())
		require.False(t, changed(), "one signal for all that changed")
		_, err := w.Page(w.ctx, api.Query{Limit: 1})
		require.NoError(t, err)
		w.stats()
		w.get("a")
		w.pass(59 * time.Second)
		require.False(t, changed(), "looking changes nothing")
		w.pass(2 * time.Second)
		require.True(t, changed(), "they are overdue")
		w.release("a")
		require.True(t, changed())
		w.live(w.put("b", map[string]string{"status": "half done"}))
		require.True(t, changed())
		w.clock(time.Hour)
		require.True(t, changed())
	})
}

func TestGetReturnsStateAndDue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Hour)
		item, found, err := w.Get(w.ctx, "a")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, protocol.Held, item.State)
		require.Equal(t, time.Hour+grace, w.due("a"))
		_, found, err = w.Get(w.ctx, "b")
		require.NoError(t, err)
		require.False(t, found)
	})
}
