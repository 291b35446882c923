package reaper_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/message"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

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
func requireLeft(h *harness, d table.Due) {
	h.t.Helper()
	before := h.keys()
	for _, d.OrphanDue = range []time.Time{past, {}, time.Now()} {
		h.handle(d)
	}
	require.Len(h.t, h.source.postponed(), 3)
	for _, p := range h.source.postponed() {
		require.Equal(h.t, table.UntilModified, p.delay)
	}
	uuid := lock.KV{Field: lock.FieldUUID, Value: []byte("u"), Create: d.Token, Mod: newest}
	deadline := lock.KV{Field: lock.FieldAutoUnlockAt, Value: []byte(expiry), Create: d.Token, Mod: newest}
	for _, keys := range [][]lock.KV{{uuid, deadline}, {deadline}} {
		var b lock.Builder
		for _, kv := range keys {
			b.Add(kv)
		}
		forged := d
		forged.Lock, forged.OrphanDue = b.Lock("a"), past
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
	lines := h.log.with(t, message.WouldRemove, "a")
	require.Len(t, lines, 1)
	require.Equal(t, "u-a", lines[0].Record["uuid"])
	for _, p := range h.source.postponed() {
		require.Equal(t, table.UntilModified, p.delay)
	}
}
