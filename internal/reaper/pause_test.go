package reaper_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// pausedBelow is a pause of the locks whose names begin with a text, while on is set.
func pausedBelow(begin string, on *atomic.Bool) pauses {
	return func(name string) verdict.Pause {
		if !on.Load() || !strings.HasPrefix(name, begin) {
			return verdict.Pause{}
		}
		return verdict.Pause{Until: time.Now().Add(time.Hour), Words: "by ada"}
	}
}

func TestS3_APauseKeepsTheLocksThatMatchAndNoOthers(t *testing.T) {
	var paused atomic.Bool
	paused.Store(true)
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Pauses = pausedBelow("deploy/", &paused) })
	h.expired("deploy/a", "other", "deploy/b")
	h.remove("deploy/a", "other", "deploy/b")
	require.Equal(t, 1, h.removed())
	require.Empty(t, h.get("other/"))
	require.Len(t, h.keys(), 10)
	for _, p := range h.source.postponed() {
		require.Equal(t, table.WhilePaused, p.delay)
	}
	require.Len(t, h.log.with(t, api.LogRemoving, ""), 1)
	paused.Store(false)
	h.remove("deploy/a", "deploy/b")
	require.Empty(t, h.keys())
}

// The first of two transactions takes long: a pause that begins meanwhile stops the second.
func TestS3_EachTransactionObeysThePauses(t *testing.T) {
	for name, all := range map[string]bool{"of all": true, "of some": false} {
		t.Run(name, func(t *testing.T) {
			var paused atomic.Bool
			h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
				o.Rules.BatchSize = unfit
				if !all {
					o.Pauses = pausedBelow("n", &paused)
					return
				}
				o.Signals = func() verdict.Signals {
					s := well()
					if paused.Load() {
						s.Paused = "paused by ada"
					}
					return s
				}
			})
			locks := names("n%03d", unfit)
			h.expired(locks...)
			h.before = func(context.Context) { paused.Store(true) }
			h.remove(locks...)
			require.EqualValues(t, 1, h.sent.Load())
			require.Equal(t, unfit/2, h.removed())
			require.Len(t, h.log.with(t, api.LogWithdrawn, ""), unfit/2)
		})
	}
}

// A person asked for it: that is no warning.
func TestAPauseIsLoggedAtInfo(t *testing.T) {
	var paused atomic.Bool
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
		o.Signals = func() verdict.Signals {
			s := well()
			if paused.Load() {
				s.Paused = "paused by ada"
			}
			return s
		}
	})
	h.start()
	paused.Store(true)
	h.await(func() bool { return len(h.log.with(t, api.LogHoldBegins, "")) == 1 })
	require.Equal(t, "paused by ada", h.holding()[verdict.HoldPaused].Reason)
	line := h.log.with(t, api.LogHoldBegins, "")[0]
	require.Contains(t, line.text, `"level":"INFO"`)
	require.Equal(t, "paused", line.Hold)
	require.Equal(t, "paused by ada", line.Reason)
	paused.Store(false)
	h.await(func() bool { return len(h.log.with(t, api.LogHoldEnds, "")) == 1 })
}

// A pause that the watch does not show yet refuses each transaction, of which each logs the record. The pauses between
// them double to a second.
func TestARemovalThatAPauseRefusesBacksOff(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	h, _ := newReplica(t, client, func(o *reaper.Options) { o.Store.Pauses, o.Rules.Concurrency = "/pauses/", 4 })
	h.commit(clientv3.OpPut("/pauses/all", "{}"))
	h.acquire(time.Now().Add(-time.Second), "a")
	h.await(func() bool { return h.sent.Load() > 0 })
	start := time.Now()
	h.await(func() bool { return h.sent.Load() > 7 })
	require.Greater(t, time.Since(start), 2250*time.Millisecond, "the least of seven pauses")
	require.Zero(t, h.removed())
	require.Zero(t, h.Stats().Conflicts)
	h.commit(clientv3.OpDelete("/pauses/all"))
	h.await(func() bool { return h.removed() == 1 })
}
