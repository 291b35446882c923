package reaper_test

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A step of our wall clock while a lock is with a worker does not hasten: its holder's clock was compared with ours
// before the step. A step back delays.
func TestS2_AStepWhileALockIsWithTheWorkerDoesNotHasten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var step time.Duration
		h := newHarness(t, nil, func(o *reaper.Options) { o.Now = func() time.Time { return time.Now().Add(step) } })
		d := h.dated("a", time.Now().Add(time.Minute))
		step = time.Hour
		require.Equal(t, time.Minute+grace, h.Verdict(d).Remaining)
		step = -h.Rules.ClockTolerance
		require.Equal(t, time.Minute+grace, h.Verdict(d).Remaining)
		step--
		require.Equal(t, time.Minute+grace-step, h.Verdict(d).Remaining)
		step = -time.Hour
		require.Equal(t, time.Hour+time.Minute+grace, h.Verdict(d).Remaining)
	})
}

// What the log and the ledger keep of a verdict gives the same verdict again.
func TestS2_LogAndLedgerReplay(t *testing.T) {
	var allowance atomic.Int64
	allowance.Store(1234567)
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
		o.Rules.Policies = []verdict.Policy{{Match: "a*", Mode: verdict.Enforce, Grace: 7 * time.Second}}
		o.Probe = allowing(&allowance)
	})
	h.expired("a", "b")
	h.set("o", "alert_at", expiry)
	due := h.dues("a", "b", "o")
	due[0].Observation.Measured, due[0].Observation.Offset = true, -12345*time.Millisecond
	h.handle(due...)
	require.Equal(t, 3, h.removed())
	entries := h.Ledger().Recent(10)
	require.Len(t, entries, 3)
	for _, r := range entries {
		text, err := json.Marshal(r.Verdict)
		require.NoError(t, err)
		logged := h.log.one(t, api.LogRemoving, r.Name).Verdict
		require.JSONEq(t, string(text), string(logged))
		for _, kept := range [][]byte{text, logged} {
			var v verdict.Verdict
			require.NoError(t, json.Unmarshal(kept, &v))
			require.Equal(t, *r.Verdict, v)
			require.Equal(t, v, verdict.Decide(v.Inputs))
		}
	}
}

// What adds to the observation while a lock is with a worker.
func TestS2_TimeWithTheWorkerCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var asked time.Time
		var h *harness
		h = newHarness(t, nil, func(o *reaper.Options) {
			o.Probe = &sound{allowance: func(written int64, learned time.Time, _ bool) (deadline, patience time.Duration) {
				require.Equal(t, h.due("a").Written, written)
				asked = learned
				return 0, 0
			}}
		})
		h.expired("a")
		d := h.due("a")
		d.Observation = verdict.Observation{Age: 10 * time.Second, NotBefore: time.Minute}
		<-time.After(20 * time.Second)
		v := h.Verdict(d)
		require.Equal(t, d.At.Add(-10*time.Second), asked, "when its last write was learned")
		require.Equal(t, 30*time.Second, v.Age)
		require.Equal(t, 40*time.Second, v.NotBefore)
		require.Equal(t, 40*time.Second, v.Remaining)
		require.Equal(t, verdict.Wait, v.Action)
	})
}

func TestAWallClockBehindTheDeadlineWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.expired("a")
		d := h.due("a")
		for _, before := range []time.Duration{time.Second, time.Hour} {
			d.At, d.Wall = time.Now(), past.Add(grace-before)
			h.handle(d)
		}
		require.Zero(t, h.sent.Load())
		require.Equal(t, []postponement{{"a", d.Token, time.Second - lead}, {"a", d.Token, time.Second - lead}}, h.source.postponed())
		d.At, d.Wall = time.Now(), past.Add(grace)
		h.handle(d)
		require.Equal(t, 1, h.removed())
	})
}

// What must wait is put back without being read.
func TestOnlyWhatIsDueSoonIsRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.Policies = []verdict.Policy{{Match: "off", Mode: verdict.Off, Grace: grace}}
		})
		h.expired("off", "due")
		start := time.Now()
		wait, off := h.dated("wait", start.Add(time.Hour)), h.due("off")
		h.handle(wait, off)
		require.Zero(t, h.reads.Load())
		require.Equal(t, []postponement{{"wait", wait.Token, time.Second - lead}, {"off", off.Token, table.UntilModified}}, h.source.postponed())

		h.handle(wait, h.due("due"), h.dated("soon", time.Now().Add(lead/2-grace)))
		require.Equal(t, 2, h.removed())
		require.Len(t, h.source.postponed(), 3)
	})
}
