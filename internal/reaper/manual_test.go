package reaper_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A lock past its deadline that this replica did not remove is listed, whenever the watch shows
// that, and nothing is claimed of it.
func TestS7_WhatAnotherReplicaRemovedIsListedOnly(t *testing.T) {
	for name, during := range map[string]bool{"not sent": false, "while the answer is awaited": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a", "b")
			d := h.due("a")
			event := func() {
				h.gone(table.Gone{Name: "a", Token: d.Token, Revision: 99, At: time.Now(), Past: &d.Lock})
			}
			if during {
				h.before = func(context.Context) { h.release("a"); event() }
				h.handle(d)
				require.EqualValues(t, 1, h.Stats().Conflicts)
			} else {
				event()
			}
			require.EqualValues(t, 1, h.Stats().ReleasedByOther)
			require.Zero(t, h.removed())
			require.Empty(t, h.Ledger().Recent(10), "nor is it in the metrics")
			listed := h.Ledger().Page("a", 10)
			require.Len(t, listed, 1)
			require.Equal(t, []any{"u-a", int64(99), verdict.Trigger(""), (*verdict.Verdict)(nil)},
				[]any{listed[0].UUID, listed[0].Revision, listed[0].Trigger, listed[0].Verdict})
			h.gone(table.Gone{Name: "b", Token: h.due("b").Token, Revision: 100, At: time.Now()})
			require.Empty(t, h.Ledger().Page("b", 10), "it was not past its deadline")
		})
	}
}

// A manual unlock of a lock past its deadline is listed once, in whichever order its record and the
// deletion are seen.
func TestS7_ManualUnlockIsListedOnce(t *testing.T) {
	for name, recordFirst := range map[string]bool{"record first": true, "deletion first": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a")
			d := h.due("a")
			deletion := func() { h.gone(table.Gone{Name: "a", Token: d.Token, Revision: 99, Past: &d.Lock}) }
			if !recordFirst {
				deletion()
			}
			h.Recorded(h.ctx, api.Forced{Name: "a", UUID: "u-a", Token: d.Token, Trigger: verdict.Manual, Who: "ada@host", Reason: "why", Revision: 99}, false, true)
			if recordFirst {
				deletion()
			}
			listed := h.Ledger().Page("", 10)
			require.Len(t, listed, 1)
			require.Equal(t, []any{"ada@host", "why", verdict.Manual}, []any{listed[0].Who, listed[0].Reason, listed[0].Trigger})
			require.Len(t, h.Ledger().Recent(10), 1)
			require.EqualValues(t, 1, h.Stats().Removed[verdict.Manual])
			require.Len(t, h.log.with(t, api.LogUnlocked, ""), 1)
		})
	}
}

// The time of a record of a manual unlock is that of a user's host: what differs from ours by more than a minute was now.
// Only such a record is a manual unlock, and it is logged unless it was.
func TestS7_OtherRecordsAreNoManualUnlocks(t *testing.T) {
	now := past.Add(24 * time.Hour)
	for name, c := range map[string]struct {
		trigger        verdict.Trigger
		before, logged bool
		off            time.Duration
		now            bool // it is listed with the present time
		lines          int
	}{
		"of now":                       {trigger: verdict.Manual, logged: true, lines: 1},
		"a minute ago":                 {trigger: verdict.Manual, logged: true, off: -time.Minute, lines: 1},
		"longer ago":                   {trigger: verdict.Manual, logged: true, off: -time.Minute - 1, now: true, lines: 1},
		"in the future":                {trigger: verdict.Manual, logged: true, off: time.Hour, now: true, lines: 1},
		"not to be logged":             {trigger: verdict.Manual},
		"before the start":             {trigger: verdict.Manual, before: true, logged: true, off: -time.Hour},
		"of another replica":           {trigger: verdict.Expiry, logged: true},
		"of another replica, long ago": {trigger: verdict.Expiry, logged: true, off: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Now = func() time.Time { return now } })
			at := now.Add(c.off)
			h.Recorded(h.ctx, api.Forced{Name: "a", UUID: "u-a", Token: 5, Trigger: c.trigger, Who: "ada@host", Reason: "why", Revision: 99, At: at}, c.before, c.logged)
			counted := c.trigger == verdict.Manual && !c.before
			require.Equal(t, counted, h.Stats().Removed[verdict.Manual] == 1)
			lines := h.log.with(t, api.LogUnlocked, "a")
			require.Len(t, lines, c.lines)
			for _, line := range lines {
				require.Equal(t, []any{"u-a", "why", int64(99)}, []any{line.UUID, line.Reason, line.Revision})
				require.Contains(t, line.text, `"who":"ada@host"`)
				require.Contains(t, line.text, `"when":"`+at.Format(time.RFC3339Nano)+`"`)
			}
			if c.now {
				at = now
			}
			require.Equal(t, at, h.Ledger().Page("a", 1)[0].At)
		})
	}
}

// What was there before the start is listed at its time, and neither counted nor logged again.
func TestS7_ManualUnlockBeforeTheStart(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.Recorded(h.ctx, api.Forced{Name: "now", Trigger: verdict.Manual, At: time.Now().Add(-time.Minute)}, false, true)
	for name, ago := range map[string]time.Duration{"minutes": 5 * time.Minute, "half": 30 * time.Minute, "day": 24 * time.Hour, "future": -time.Hour} {
		h.Recorded(h.ctx, api.Forced{Name: name, Trigger: verdict.Manual, At: time.Now().Add(-ago)}, true, true)
	}
	var names []string
	for _, r := range h.Ledger().Recent(10) {
		names = append(names, r.Name)
		require.False(t, r.At.After(time.Now()))
	}
	require.Equal(t, []string{"future", "now", "minutes", "half"}, names)
	require.EqualValues(t, 1, h.Stats().Removed[verdict.Manual])
	require.Len(t, h.log.with(t, api.LogUnlocked, ""), 1)
}
