package reaper_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/message"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestS1_OrphanUnchangedIsRemoved(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.set("a", "auto_unlock_at", expiry)
	h.remove("a")
	require.Empty(t, h.keys())
	require.EqualValues(t, 1, h.Stats().Removed[verdict.Orphan])
	require.Contains(t, string(h.log.with(t, message.Removing, "a")[0].Verdict), `"orphan_due"`)
}

func TestS1_WhatTheSourceHasNotSeenIsLeft(t *testing.T) {
	for name, change := range map[string]func(*harness, *table.Due){
		"renewed":                      func(h *harness, _ *table.Due) { h.set("a", "auto_unlock_at", expiry) },
		"taken again":                  func(h *harness, _ *table.Due) { h.release("a"); h.expired("a") },
		"vanished":                     func(h *harness, _ *table.Due) { h.release("a") },
		"rewritten":                    func(h *harness, _ *table.Due) { h.set("a", "hostname", "x") },
		"taken again, revision unseen": func(h *harness, d *table.Due) { h.release("a"); h.expired("a"); d.Revision = newest },
		"other deadline":               func(h *harness, d *table.Due) { h.set("a", "auto_unlock_at", "1700000001"); d.Revision = newest },
		"other uuid":                   func(h *harness, d *table.Due) { h.set("a", "uuid", "x"); d.Revision = newest },
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

// What changed between the verdict and its transaction is put back and tried again.
func TestS1_AConflictIsLoggedCountedAndPutBack(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.expired("a")
	h.before = func(context.Context) { h.set("a", "hostname", "other") }
	h.remove("a")
	require.Len(t, h.keys(), 5)
	require.Zero(t, h.removed())
	require.EqualValues(t, 1, h.Stats().Conflicts)
	require.Empty(t, h.Ledger().Recent(10))
	require.Len(t, h.log.with(t, message.Conflict, "a"), 1)
	require.Len(t, h.source.postponed(), 1)
	require.Positive(t, h.source.postponed()[0].delay)
}
