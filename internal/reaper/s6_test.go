package reaper

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// dated writes a lock whose deadline is at an instant, and returns it as one
// that was seen live by a clock that agrees.
func (h *house) dated(name string, deadline time.Time) Candidate {
	h.t.Helper()
	h.put(name, map[string]string{"uuid": "u", "auto_unlock_at": lock.TimestampOf(deadline).String()})
	c := h.candidate(name)
	c.Sight = lock.Sight{Measured: true, Anchor: -ages}
	return c
}

func TestS6_TheLeaderActsAtDueAndAStandbyLater(t *testing.T) {
	const standby, soon = time.Second, 500 * time.Millisecond
	for name, c := range map[string]struct {
		leader bool
		after  time.Duration
	}{"leader": {true, 0}, "standby": {false, standby}} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, sharedClient(t), func(o *Options) {
				o.Leader, o.Rules.StandbyDelay = func() bool { return c.leader }, standby
			})
			h.source.again = true
			due := time.Now().Add(300 * time.Millisecond)
			var sent atomic.Pointer[time.Time]
			h.kv.before = func() { now := time.Now(); sent.CompareAndSwap(nil, &now) }
			h.source.fed <- []Candidate{h.dated("a", due.Add(-h.Rules.Grace))}
			run(t, h, func() {
				require.Eventually(t, func() bool { return h.removed() == 1 }, 10*time.Second, time.Millisecond)
			})
			require.GreaterOrEqual(t, sent.Load().Sub(due), c.after)
			require.Less(t, sent.Load().Sub(due), c.after+soon)
			require.WithinDuration(t, due, h.Ledger().Recent(1)[0].Verdict.Due, time.Millisecond, "the delay of a standby is not the lock's")
		})
	}
}

// Who takes over in the meantime does not wait any longer.
func TestS6_AStandbyThatIsElectedActsAtOnce(t *testing.T) {
	var leader atomic.Bool
	h := newHouse(t, sharedClient(t), func(o *Options) { o.Leader, o.Rules.StandbyDelay = leader.Load, ages })
	h.expired("a")
	h.remove("a")
	require.Empty(t, h.kv.sent())
	leader.Store(true)
	h.remove("a")
	require.Equal(t, 1, h.removed())
}

func TestS6_TheRateIsKept(t *testing.T) {
	const n, batch, perSecond = 40, 4, 40
	h := newHouse(t, sharedClient(t), func(o *Options) { o.Rate, o.BatchSize, o.Concurrency = perSecond, batch, 3 })
	h.expired(names("n%02d", n)...)
	for part := range slices.Chunk(h.candidates(names("n%02d", n)...), batch) {
		h.source.fed <- part
	}
	start := time.Now()
	run(t, h, func() {
		require.Eventually(t, func() bool { return h.removed() == n }, 20*time.Second, time.Millisecond)
	})
	took := time.Since(start)
	require.GreaterOrEqual(t, took, (n-batch)*time.Second/perSecond)
	require.Less(t, took, 5*time.Second)
	require.Empty(t, h.source.postponed())
}

func TestS6_NoRateIsNoLimit(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) { o.BatchSize = 4 })
	h.expired(names("n%02d", 40)...)
	h.remove(names("n%02d", 40)...)
	require.Equal(t, 40, h.removed())
}

func TestRunEndsWhileWaitingForTheRate(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) { o.Rate, o.BatchSize = 0.001, 1 })
	h.expired("a", "b")
	h.source.fed <- h.candidates("a")
	h.source.fed <- h.candidates("b")
	var ending time.Time
	run(t, h, func() {
		require.Eventually(t, func() bool { return h.removed() == 1 }, 10*time.Second, time.Millisecond)
		ending = time.Now()
	})
	require.Less(t, time.Since(ending), time.Second)
	require.Equal(t, 1, h.removed())
}

// Those that must wait are put back without being read.
func TestSiftReadsOnlyWhatIsSoonDue(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Rules.Policies = []Policy{{Match: "off", Mode: Off, Grace: 2 * time.Second}}
	})
	h.expired("off", "due")
	wait := h.dated("wait", time.Now().Add(time.Hour))
	soon := h.dated("soon", time.Now().Add(Lead/2-h.Rules.Grace))
	w := &worker{Reaper: h.Reaper, requests: h.ctx}

	batch, err := w.readAll(w.sift([]Candidate{wait, h.candidate("off")}, true))
	require.NoError(t, err)
	require.Empty(t, batch)
	require.Zero(t, h.kv.reads)
	back := h.source.postponed()
	require.Len(t, back, 2)
	require.InDelta(t, time.Hour+h.Rules.Grace-Lead, back[0].delay, float64(time.Minute))
	require.Equal(t, postponement{"off", h.candidate("off").Token, Park}, back[1])

	soon.At = time.Now()
	kept := w.sift([]Candidate{wait, h.candidate("due"), soon}, true)
	require.Equal(t, []string{"due", "soon"}, []string{kept[0].Name, kept[1].Name})
	require.Empty(t, w.sift(kept, false))
	require.Zero(t, h.kv.reads)
	require.Equal(t, time.Duration(0), h.source.postponed()[4].delay)
}
