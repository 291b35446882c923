package reaper_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// audit is the records of all replicas, as each reads them.
type audit struct {
	mu  sync.Mutex
	all []api.Forced
}

func (a *audit) Write(_ context.Context, removed []api.Forced) (int, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range removed {
		_, r, err := records.Parse([]byte(records.Encode("", f)), f.Revision+1)
		if err != nil {
			return 0, false, err
		}
		a.all = append(a.all, r)
	}
	return len(removed), false, nil
}

func (a *audit) records() []api.Forced {
	<-time.After(time.Second) // until they are written
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]api.Forced(nil), a.all...)
}

// braked is a replica that keeps the lock of a name after three removals within an hour, but for names that begin with
// free/. once is for names that begin with once/.
func braked(t *testing.T, a *audit) *harness {
	t.Helper()
	h := newHarness(t, nil, recording(a), func(o *reaper.Options) {
		o.Rules.Brake = config.Brake{MaxForced: 3, Window: time.Hour}
		o.Rules.Policies = []verdict.Policy{
			{Match: "free/*", Mode: verdict.Enforce, Grace: grace},
			{Match: "once/*", Mode: verdict.Enforce, Grace: grace, Brake: config.Brake{MaxForced: 1, Window: time.Hour}},
		}
	})
	h.ctx = t.Context() // for days
	return h
}

// expire has a lock of a name expire. It reports whether it was removed, and otherwise requires that a brake keeps it.
func (h *harness) expire(name string) (removed bool) {
	h.t.Helper()
	if len(h.get(name+"/")) == 0 {
		h.expired(name)
	}
	h.remove(name)
	synctest.Wait()
	if len(h.get(name+"/")) == 0 {
		return true
	}
	all := h.source.postponed()
	require.Equal(h.t, table.WhileBraked, all[len(all)-1].delay)
	v := h.Verdict(h.due(name))
	require.Equal(h.t, []any{verdict.Leave, verdict.ByBrake}, []any{v.Action, v.Reason})
	require.True(h.t, h.Braked(name))
	return false
}

// releaseInTime has the holder of a lock release it in time.
func (h *harness) releaseInTime(name string) {
	h.expired(name)
	token := h.due(name).Token
	h.commit(clientv3.OpDelete(h.direct.Layout.Prefix()+name+"/", clientv3.WithPrefix()))
	h.Released(name, token)
}

// learn has a replica read records.
func (h *harness) learn(all ...api.Forced) (ended bool) {
	for _, f := range all {
		ended = h.Recorded(h.ctx, f, true, true)
	}
	return ended
}

func TestS3_BrakeKeepsALockOnceEnoughWereRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := &audit{}
		h := braked(t, a)
		for range 3 {
			require.True(t, h.expire("job"))
			<-time.After(29 * time.Minute)
		}
		require.False(t, h.expire("job"))
		<-time.After(3 * time.Hour)
		require.False(t, h.expire("job"), "no time ends it")
		require.True(t, h.expire("once/a"))
		require.False(t, h.expire("once/a"))
		for range 5 {
			require.True(t, h.expire("free/a"))
		}
		require.True(t, h.expire("other"))
		require.Zero(t, h.Verdict(h.due("free/a")).MaxForced)
		require.False(t, h.Braked("free/a"))
		h.RecordGone("free/a")
		require.False(t, h.learn(api.Forced{Name: "free/a", Trigger: verdict.Ended, Revision: newest}), "of no count")
		h.set("other", "purpose", "an orphan")
		h.source.give(h.due("other"))
		for _, f := range a.records() {
			require.Equal(t, f.Name != "free/a" && f.Trigger == verdict.Expiry, len(f.Counted) > 0, f.Name)
		}
		require.EqualValues(t, 1, h.Stats().Removed[verdict.Orphan])
	})
}

func TestS3_BrakeCountsWithinItsWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := braked(t, &audit{})
		for range 6 {
			require.True(t, h.expire("job"), "two an hour")
			<-time.After(30*time.Minute + time.Second)
		}
		require.True(t, h.expire("job"))
		<-time.After(time.Minute)
		require.True(t, h.expire("job"), "three within 31 minutes")
		require.False(t, h.expire("job"))
		require.True(t, h.expire("other"))
		<-time.After(time.Hour)
		forced, _ := h.Braking("other")
		require.Zero(t, forced, "as is shown")
	})
}

// A release in time ends the count; one of the lock that was removed, or of before, does not.
func TestS3_BrakeEndsWithAReleaseInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := &audit{}
		h := braked(t, a)
		for range 2 {
			require.True(t, h.expire("job"))
			require.True(t, h.expire("job"))
			h.releaseInTime("job")
			h.Released("unknown", 7)
		}
		require.Len(t, a.records(), 6, "and two that say so")
		require.Equal(t, 1, h.Streaks(), "of what was removed")
		require.True(t, h.expire("job"))
		h.Released("job", a.records()[6].Revision-1)
		require.Len(t, a.records(), 7, "that ended nothing")
		require.True(t, h.expire("job"))
		require.True(t, h.expire("job"))
		require.False(t, h.expire("job"))
	})
}

// Every replica keeps the lock that another keeps, in whatever order the records come, one that was restarted too.
func TestS3_BrakeAgreesByTheRecords(t *testing.T) {
	user := func(trigger verdict.Trigger) func(*harness, *audit) {
		return func(h *harness, a *audit) {
			last := a.records()[len(a.all)-1].Revision
			f := api.Forced{At: time.Now(), Name: "job", Token: last + 1, Trigger: trigger, Revision: last + 2, Who: "ada"}
			a.all = append(a.all, f)
			require.True(h.t, h.learn(f))
		}
	}
	removed := func(h *harness, _ *audit) { require.True(h.t, h.expire("job")) }
	for name, c := range map[string]struct {
		steps []func(*harness, *audit)
		// more is how many are removed before the lock is kept.
		more int
	}{
		"three":                 {[]func(*harness, *audit){removed, removed, removed}, 0},
		"two":                   {[]func(*harness, *audit){removed, removed}, 1},
		"unlocked":              {[]func(*harness, *audit){removed, removed, removed, user(verdict.Manual)}, 3},
		"resumed":               {[]func(*harness, *audit){removed, removed, removed, user(verdict.Ended)}, 3},
		"unlocked, and one":     {[]func(*harness, *audit){removed, removed, user(verdict.Manual), removed}, 2},
		"released, and two":     {[]func(*harness, *audit){removed, func(h *harness, _ *audit) { h.releaseInTime("job") }, removed, removed}, 1},
		"released":              {[]func(*harness, *audit){removed, removed, func(h *harness, _ *audit) { h.releaseInTime("job") }}, 3},
		"out of the window":     {[]func(*harness, *audit){removed, removed, func(*harness, *audit) { <-time.After(2 * time.Hour) }, removed}, 2},
		"two lost, by the last": {[]func(*harness, *audit){removed, removed, removed, func(_ *harness, a *audit) { a.all = a.records()[2:] }}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a := &audit{}
				first := braked(t, a)
				for _, step := range c.steps {
					step(first, a)
					<-time.After(time.Minute)
				}
				all := a.records()
				first.stop()
				forward, backward := braked(t, a), braked(t, a)
				forward.learn(all...)
				for i := range all {
					backward.learn(all[len(all)-1-i])
				}
				forward.learn(all...)
				for _, h := range []*harness{first, forward, backward} {
					forced, _ := h.Braking("job")
					require.Equal(t, 3-c.more, forced)
				}
			})
		})
	}
}

// The brake waits for a user for longer than etcd keeps a record. What no brake counts any more is forgotten.
func TestS3_BrakeOutlivesItsRecords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := &audit{}
		h := braked(t, a)
		for range 3 {
			require.True(t, h.expire("job"))
		}
		require.True(t, h.expire("other"))
		all := a.records()
		h.stop()
		<-time.After(25 * time.Hour)
		a.all = nil
		h = braked(t, a)
		h.learn(all...)
		h.start()
		h.RecordGone("job")
		h.RecordGone("other")
		require.True(t, h.expire("recent"))
		h.RecordGone("recent")
		again := a.records()
		require.Len(t, again, 2)
		last := all[2]
		require.Equal(t, []any{"job", verdict.Expiry, last.Revision, last.Counted}, []any{again[0].Name, again[0].Trigger, again[0].Revision, again[0].Counted})
		require.Equal(t, "recent", again[1].Name)
		require.Equal(t, 2, h.Streaks())
		later := braked(t, a)
		later.learn(again[0])
		require.False(t, later.expire("job"))
		require.Empty(t, later.Ledger().Page("job", 10), "it is too old to be listed")
	})
}

// Any client with the right to write records may have written them: they keep a lock, or end a count, as a user may.
func TestS3_BrakeWithForgedRecords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := braked(t, &audit{})
		future := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		many := make([]api.Counted, 500)
		for i := range many {
			many[i] = api.Counted{Revision: int64(i + 1), At: future}
		}
		many[499].Revision = math.MaxInt64 // which nothing would end
		forged := api.Forced{At: future, Name: "job", Trigger: verdict.Expiry, Revision: 500, Counted: many}
		_, r, err := records.Parse([]byte(records.Encode("", forged)), 501)
		require.NoError(t, err)
		require.Len(t, r.Counted, 100)
		require.Less(t, cap(r.Counted), 200, "the rest is not kept")
		h.learn(r)
		require.False(t, h.expire("job"))
		forged = api.Forced{At: future, Name: "job", Trigger: verdict.Ended, Token: math.MaxInt64, Revision: math.MaxInt64}
		_, r, err = records.Parse([]byte(records.Encode("", forged)), 502)
		require.NoError(t, err)
		require.EqualValues(t, 502, r.Revision, "no more than there was")
		require.True(t, h.learn(r))
		forced, _ := h.Braking("job")
		require.Zero(t, forced)
		require.True(t, h.expire("job"))
		h.learn(api.Forced{Name: "job", Trigger: verdict.Orphan, Revision: 1000, Counted: many})
		require.False(t, h.Braked("job"))
		for i := range 100 {
			h.learn(api.Forced{Name: "job", Trigger: verdict.Ended, Revision: int64(2000 + i)})
		}
		require.Equal(t, 3, h.Ends("job"), "as many as can matter")
	})
}

// Names are counted up to a limit, and the names of before go on being counted.
func TestS3_BrakeKnowsSoManyNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const limit = 50_000
		h, now := braked(t, &audit{}), time.Now()
		for i := range limit {
			h.learn(api.Forced{Name: fmt.Sprint(i), Trigger: verdict.Expiry, Revision: int64(i + 1), At: now})
		}
		for i := range int64(3) {
			h.learn(api.Forced{Name: "0", Trigger: verdict.Expiry, Revision: limit + 1 + 2*i, At: now},
				api.Forced{Name: "one more", Trigger: verdict.Expiry, Revision: limit + 2 + 2*i, At: now})
		}
		require.True(t, h.Braked("0"))
		require.False(t, h.Braked("one more"))
		require.Equal(t, limit, h.Streaks())
	})
}

// Each replica may remove a lock before it reads the record of the removal before it, or of what ended the count.
func TestS3_BrakeCountsWhatTheNewestRecordDoesNotKnow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		now := time.Now()
		all := []api.Forced{{Revision: 10}, {Revision: 20}, {Revision: 30}}
		for i := range all {
			all[i].Name, all[i].Trigger, all[i].At = "job", verdict.Expiry, now
		}
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
			h := braked(t, &audit{})
			for _, i := range order {
				require.False(t, h.Braked("job"))
				h.learn(all[i], all[i])
			}
			require.True(t, h.Braked("job"))
			require.True(t, h.learn(api.Forced{Name: "job", Trigger: verdict.Ended, Revision: 25, Who: "ada"}))
			forced, _ := h.Braking("job")
			require.Equal(t, 1, forced, "the last one was later")
			require.True(t, h.learn(api.Forced{Name: "job", Trigger: verdict.Ended, Revision: 30}))
		}
	})
}

// After a restore to an older revision a user ends what counted before, and what comes then counts.
func TestS3_BrakeInAnotherHistory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := &audit{}
		h := braked(t, a)
		counted := []api.Counted{{Revision: 1e6, At: time.Now()}, {Revision: 1e6 + 1, At: time.Now()}}
		last := api.Forced{Name: "job", Trigger: verdict.Expiry, Revision: 1e6 + 2, At: time.Now(), Counted: counted}
		ended := last
		ended.Name = "ended"
		h.learn(last, ended, api.Forced{Name: "ended", Trigger: verdict.Ended, Revision: 1e6 + 3})
		h.Restored()
		require.False(t, h.expire("job"), "it still waits for a user")
		h.RecordGone("job")
		require.Less(t, a.records()[0].Revision, int64(10), "of which others can make use")
		for range 3 {
			require.True(t, h.expire("ended"))
		}
		require.False(t, h.expire("ended"))
		for _, name := range []string{"job", "ended"} {
			require.True(t, h.learn(api.Forced{Name: name, Trigger: verdict.Ended, Revision: 900}))
			require.True(t, h.expire(name))
		}
	})
}

// A replica whose clock is slow takes a removal for a release in time. Whichever record comes first, it ends nothing.
func TestS3_BrakeKnowsReleasesFromRemovals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var all []api.Forced
		for token := int64(10); token < 40; token += 10 {
			all = append(all,
				api.Forced{Name: "job", Trigger: verdict.Expiry, Token: token, Revision: token + 5, At: time.Now()},
				api.Forced{Name: "job", Trigger: verdict.Ended, Token: token, Revision: token})
		}
		for _, order := range [][]int{{0, 1, 2, 3, 4, 5}, {1, 0, 3, 2, 5, 4}, {5, 4, 3, 2, 1, 0}, {1, 3, 5, 0, 2, 4}} {
			h := braked(t, &audit{})
			for _, i := range order {
				h.learn(all[i])
			}
			require.True(t, h.Braked("job"))
			require.True(t, h.learn(api.Forced{Name: "job", Trigger: verdict.Ended, Token: 37, Revision: 37}))
		}
	})
}
