package reaper_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestS1_OrphanUnchangedIsRemoved(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.set("a", "auto_unlock_at", expiry)
	h.remove("a")
	require.Empty(t, h.keys())
	require.EqualValues(t, 1, h.Stats().Removed[verdict.Orphan])
	require.Contains(t, string(h.log.one(t, api.LogRemoving, "a").Verdict), `"orphan_due"`)
	require.Len(t, h.source.postponed(), 1, "something may be left")
}

func TestS1_WhatTheSourceHasNotSeenIsLeft(t *testing.T) {
	for name, change := range map[string]func(*harness, *table.View){
		"renewed":                      func(h *harness, _ *table.View) { h.set("a", "auto_unlock_at", expiry) },
		"taken again":                  func(h *harness, _ *table.View) { h.release("a"); h.expired("a") },
		"vanished":                     func(h *harness, _ *table.View) { h.release("a") },
		"rewritten":                    func(h *harness, _ *table.View) { h.set("a", "hostname", "x") },
		"taken again, revision unseen": func(h *harness, d *table.View) { h.release("a"); h.expired("a"); d.Revision = newest },
		"other deadline":               func(h *harness, d *table.View) { h.set("a", "auto_unlock_at", "1700000001"); d.Revision = newest },
		"older, after a restore":       func(_ *harness, d *table.View) { d.Revision, d.Written = newest, newest },
		"other uuid":                   func(h *harness, d *table.View) { h.set("a", "uuid", "x"); d.Revision = newest },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a")
			d := h.due("a")
			change(h, &d)
			remaining := h.keys()
			h.handle(d)
			require.Zero(t, h.sent.Load())
			require.Equal(t, remaining, h.keys())
			require.EqualValues(t, 1, h.Stats().Conflicts)
			require.Len(t, h.source.postponed(), 1)
		})
	}
}

// The answer of a holder that was asked comes between the verdict and its transaction, which therefore fails: the next
// attempt does not wait.
func TestS6_AnAnswerDelaysNoRemoval(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.expired("a")
	d, asked := h.due("a"), false
	h.before = func(context.Context) {
		if !asked {
			asked = true
			h.set("a", "stack", "goroutine 1", "status", "7 of 9", "answered_at", expiry)
		}
	}
	h.handle(d)
	require.EqualValues(t, 1, h.Stats().Conflicts)
	require.Zero(t, h.putBack())
	h.remove("a")
	require.Empty(t, h.keys())
}

// The watch lags behind a renewal: until it shows that, the lock is read ever more rarely.
func TestS6_AModifiedLockBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.source.again = true
		h.expired("a")
		d := h.due("a")
		h.set("a", "auto_unlock_at", expiry)
		h.give(d)
		<-time.After(time.Minute)
		require.InDelta(t, 17, h.Stats().Conflicts, 8)
	})
}

func TestS1_AnOrphanThatVanishedBeforeTheReadIsAConflict(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": 64 << 10} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.set("a", "backtrace", strings.Repeat("x", size))
			d := h.due("a")
			h.release("a")
			h.handle(d)
			require.Zero(t, h.sent.Load())
			require.EqualValues(t, 1, h.Stats().Conflicts)
			require.Empty(t, h.failures())
		})
	}
}

// A known field with a lease makes the lock that of another program.
func TestS4_LeasedFieldIsNeverRemoved(t *testing.T) {
	for _, field := range []string{"uuid", "auto_unlock_at", "hostname", "backtrace"} {
		for _, size := range []int{1, 64 << 10} {
			t.Run(fmt.Sprint(field, size), func(t *testing.T) {
				h := newHarness(t, sharedClient(t))
				h.set("a", "uuid", "u", "auto_unlock_at", expiry, "purpose", strings.Repeat("x", size))
				lease, err := sharedClient(t).Grant(h.ctx, 600)
				require.NoError(t, err)
				value := map[string]string{"uuid": "u", "auto_unlock_at": expiry}[field]
				h.commit(clientv3.OpPut(h.direct.Layout.Key("a", field), value, clientv3.WithLease(lease.ID)))
				d := h.due("a")
				require.False(t, d.Removable())
				requireLeft(h, d)
			})
		}
	}
}

// More gaps with keys of the lock than a transaction can take: it is left whole, and
// that is logged.
func TestS4_TooManyGapsAreLeftWhole(t *testing.T) {
	for _, n := range []int{140, 1_200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a", "b")
			h.crowd("a/n%04d/uuid", n)
			h.crowd("a/n%04dx", n)
			before := h.keys()
			h.remove("a", "b")
			require.Equal(t, before[:len(before)-5], h.keys())
			require.Equal(t, 1, h.removed())
			require.EqualValues(t, 1, h.sent.Load(), "that of the other lock")
			require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonTooLarge: 1}, h.failures())
			require.Len(t, h.log.with(t, api.LogCannotRemove, "a"), 1)
			require.Empty(t, h.log.with(t, api.LogRemoving, "a"))
			require.GreaterOrEqual(t, h.putBack(), 50*time.Millisecond)
		})
	}
}

func TestS8_NothingWithoutAReadableDeadlineIsRemoved(t *testing.T) {
	big := strings.Repeat("\x00", 64<<10)
	for name, fields := range map[string][]string{
		"undated":                 {"uuid", "u", "locked_at", expiry},
		"uuid alone":              {"uuid", "u"},
		"empty deadline":          {"uuid", "u", "auto_unlock_at", ""},
		"words":                   {"uuid", "u", "auto_unlock_at", "yesterday"},
		"zero":                    {"uuid", "u", "auto_unlock_at", "0"},
		"interval":                {"uuid", "u", "auto_unlock_at", "3600"},
		"negative":                {"uuid", "u", "auto_unlock_at", "-1700000000"},
		"milliseconds":            {"uuid", "u", "auto_unlock_at", "1700000000000"},
		"overflow":                {"uuid", "u", "auto_unlock_at", "99999999999999999999999"},
		"space":                   {"uuid", "u", "auto_unlock_at", expiry + " "},
		"binary":                  {"uuid", "u", "auto_unlock_at", "\xff\x00"},
		"other timestamp bad":     {"uuid", "u", "auto_unlock_at", expiry, "alert_at", "soon"},
		"uuid empty":              {"uuid", "", "auto_unlock_at", expiry},
		"uuid too long":           {"uuid", big[:300], "auto_unlock_at", expiry},
		"orphan with unknown":     {"auto_unlock_at", expiry, "x", "y"},
		"unknown alone":           {"x", "y"},
		"large undated":           {"uuid", "u", "backtrace", big},
		"large orphan, unknown":   {"auto_unlock_at", expiry, "x", big},
		"large, deadline the big": {"uuid", "u", "auto_unlock_at", big},
	} {
		for form, nested := range map[string][]string{"range": nil, "nested": {"a/b", "a/t"}} {
			t.Run(name+"/"+form, func(t *testing.T) {
				h := newHarness(t, sharedClient(t))
				h.set("a", fields...)
				h.expired(nested...)
				requireLeft(h, h.due("a"))
			})
		}
	}
}

// requireLeft requires that a lock is left, whatever a source says about it: also
// where it calls the lock a due one, or an orphan, and has seen everything.
func requireLeft(h *harness, d table.View) {
	h.t.Helper()
	before := h.keys()
	for _, d.OrphanIn = range []time.Duration{-ages, 0, 1} {
		h.handle(d)
	}
	require.Len(h.t, h.source.postponed(), 3)
	for _, p := range h.source.postponed() {
		require.Equal(h.t, table.UntilModified, p.delay)
	}
	uuid := protocol.KV{Field: protocol.FieldUUID, Value: []byte("u"), Create: d.Token, Mod: newest}
	deadline := protocol.KV{Field: protocol.FieldAutoUnlockAt, Value: []byte(expiry), Create: d.Token, Mod: newest}
	for _, keys := range [][]protocol.KV{{uuid, deadline}, {deadline}} {
		var b protocol.Builder
		for _, kv := range keys {
			b.Add(kv)
		}
		forged := d
		forged.Lock, forged.OrphanIn = b.Lock("a"), -ages
		h.handle(forged)
	}
	require.Zero(h.t, h.sent.Load())
	require.Equal(h.t, before, h.keys())
	require.Zero(h.t, h.removed())
	require.Empty(h.t, h.failures())
}

// A deadline that an earlier holder left is not this holder's.
func TestS8_LeftoverDeadlineDoesNotCount(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.set("a", "auto_unlock_at", expiry, "alert_at", expiry)
	h.set("a", "uuid", "u")
	requireLeft(h, h.due("a"))
	require.Len(t, h.keys(), 3)
}

// Names that no lock can have, and a source that makes its locks up.
func TestS8_WhateverASourceHandsOut(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	for key, value := range map[string]string{"uuid": "u", "/uuid": "u", "/auto_unlock_at": expiry, "a//auto_unlock_at": expiry, "a//uuid": "u"} {
		h.commit(clientv3.OpPut(h.direct.Layout.Prefix()+key, value))
	}
	h.expired("good")
	before := h.keys()
	forged := h.due("good")
	for _, name := range []string{"", "/", "//", "/uuid", "a", "a/", "/a//uuid", "nothing", "goo", "good/", "\xff"} {
		forged.Name = name
		for _, forged.Token = range []int64{0, forged.Token} {
			h.handle(forged)
		}
	}
	require.Zero(t, h.sent.Load())
	require.Equal(t, before, h.keys())
}

func TestDryRunLogsAndCountsOnceAndDeletesNothing(t *testing.T) {
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Rules.Mode = verdict.DryRun })
	h.expired("a", "a/b")
	h.set("o", "alert_at", expiry)
	before := h.keys()
	h.remove("a", "o")
	require.Equal(t, before, h.keys())
	require.Zero(t, h.sent.Load())
	require.EqualValues(t, 2, h.Stats().Would)
	require.Zero(t, h.removed())
	require.Empty(t, h.Ledger().Recent(10))
	require.Equal(t, "u-a", h.log.one(t, api.LogWouldRemove, "a").Record["uuid"])
	for _, p := range h.source.postponed() {
		require.Equal(t, table.UntilModified, p.delay)
	}
}
