package reaper

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// The forms that a removal takes: one range; the gaps between nested names;
// read field by field with its gaps, or, where very much is nested, key by key.
var forms = map[string]func(h *house){
	"range":  func(*house) {},
	"nested": func(h *house) { h.expired("a/nested", "a/i") },
	// Between these two lies no key of the lock, until "j" comes.
	"empty gap": func(h *house) { h.expired("a/i", "a/k") },
	"large":     func(h *house) { h.put("a", map[string]string{"backtrace": string(make([]byte, 64<<10))}) },
	"crowd": func(h *house) {
		h.crowd("a/z%04d", 1_100)
	},
	"crowded field": func(h *house) {
		h.put("a", map[string]string{"unknown": "x"})
		h.crowd("a/z%03d", 300)
	},
}

// What may happen between the verdict and its transaction, and the keys of the
// lock that must be there afterwards.
var changes = map[string]struct {
	change func(h *house)
	left   int
	// except names the forms that are documented not to notice: a new unknown key
	// between more nested names than a transaction can guard.
	except []string
}{
	"renewed": {left: 5, change: func(h *house) {
		h.put("a", map[string]string{"auto_unlock_at": lock.TimestampOf(time.Now().Add(time.Hour)).String()})
	}},
	"renewed within the second": {left: 5, change: func(h *house) {
		h.put("a", map[string]string{"auto_unlock_at": past.String()})
	}},
	"first alive_at": {left: 6, change: func(h *house) { h.put("a", map[string]string{"alive_at": past.String()}) }},
	"released":       {left: 0, change: func(h *house) { h.release("a") }},
	"retaken": {left: 5, change: func(h *house) {
		h.release("a")
		h.put("a", map[string]string{"uuid": "other", "hostname": "host", "locked_at": past.String(),
			"auto_unlock_at": past.String(), "purpose": "test"})
	}},
	"retaken, as it was": {left: 5, change: func(h *house) {
		h.release("a")
		h.expired("a")
	}},
	"uuid put anew":   {left: 5, change: func(h *house) { h.put("a", map[string]string{"uuid": "u-a"}) }},
	"other hostname":  {left: 5, change: func(h *house) { h.put("a", map[string]string{"hostname": "other"}) }},
	"unknown first":   {left: 6, except: []string{"crowd"}, change: func(h *house) { h.put("a", map[string]string{"!new": "x"}) }},
	"unknown between": {left: 6, except: []string{"crowd"}, change: func(h *house) { h.put("a", map[string]string{"j": "x"}) }},
	"unknown last":    {left: 6, except: []string{"crowd", "crowded field"}, change: func(h *house) { h.put("a", map[string]string{"~new": "x"}) }},
}

// crowd writes many names that have a uuid only.
func (h *house) crowd(format string, n int) {
	h.t.Helper()
	fields := make(map[string]string)
	for _, name := range names(format, n) {
		fields[name+"/uuid"] = "u"
	}
	h.put("", fields)
}

// release is what a client's unlock does: each of its own keys, one by one.
func (h *house) release(name string) {
	h.t.Helper()
	var ops []clientv3.Op
	for f := lock.FieldUnknown + 1; f <= lock.FieldUUID; f++ {
		ops = append(ops, clientv3.OpDelete(h.Layout.Key(name, f.String())))
	}
	ops = append(ops, clientv3.OpDelete(h.Layout.Key(name, "unknown")))
	_, err := h.cli.Txn(h.ctx).Then(ops...).Commit()
	require.NoError(h.t, err)
}

func TestS1_NothingIsRemovedThatChangedAfterTheVerdict(t *testing.T) {
	for form, prepare := range forms {
		for change, c := range changes {
			if slices.Contains(c.except, form) {
				continue
			}
			t.Run(form+"/"+change, func(t *testing.T) {
				h := newHouse(t, sharedClient(t))
				h.expired("a")
				prepare(h)
				before := len(h.keys()) - int(h.candidate("a").Keys)
				extra := int(h.candidate("a").Keys) - 5
				if c.left == 0 {
					extra = 0
				} else if change == "retaken" || change == "retaken, as it was" {
					extra = 0
				}
				h.kv.before = func() { c.change(h) }
				h.remove("a")
				require.Len(t, h.kv.sent(), 1, "the change came too early")
				require.EqualValues(t, c.left+extra, h.candidate("a").Keys)
				require.Len(t, h.keys(), before+c.left+extra)
				require.Equal(t, 0, h.removed())
				require.EqualValues(t, 1, h.Stats().Conflicts)
				require.Len(t, h.source.postponed(), 1)
				require.Greater(t, h.source.postponed()[0].delay, time.Duration(0))
				require.Empty(t, h.Ledger().Recent(10))
				require.Len(t, h.logs.with(t, msgConflict, "a"), 1)
			})
		}
		t.Run(form+"/unchanged", func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired("a")
			prepare(h)
			before := len(h.keys()) - int(h.candidate("a").Keys)
			h.remove("a")
			require.EqualValues(t, 0, h.candidate("a").Keys)
			require.Len(t, h.keys(), before)
			require.Equal(t, 1, h.removed())
		})
	}
}

func TestS1_OrphansThatChangeAreLeft(t *testing.T) {
	for name, change := range map[string]func(h *house){
		"uuid appears":        func(h *house) { h.put("a", map[string]string{"uuid": "u"}) },
		"field rewritten":     func(h *house) { h.put("a", map[string]string{"alert_at": past.String()}) },
		"field added":         func(h *house) { h.put("a", map[string]string{"pid": "1"}) },
		"unknown field added": func(h *house) { h.put("a", map[string]string{"x": "1"}) },
		"vanished":            func(h *house) { h.release("a") },
	} {
		for form, nested := range map[string][]string{"range": nil, "nested": {"a/b", "a/o"}} {
			t.Run(name+"/"+form, func(t *testing.T) {
				h := newHouse(t, sharedClient(t))
				h.put("a", map[string]string{"auto_unlock_at": past.String(), "alert_at": past.String()})
				h.expired(nested...)
				var left int32
				h.kv.before = func() {
					change(h)
					left = h.candidate("a").Keys
				}
				h.remove("a")
				require.Len(t, h.kv.sent(), 1)
				require.Equal(t, left, h.candidate("a").Keys)
				require.Equal(t, 0, h.removed())
				require.EqualValues(t, 1, h.Stats().Conflicts)
			})
		}
	}
}

func TestS1_OrphanUnchangedIsRemoved(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.put("a", map[string]string{"auto_unlock_at": past.String()})
	h.remove("a")
	require.Empty(t, h.keys())
	require.EqualValues(t, 1, h.Stats().Removed[Orphan])
	require.Contains(t, h.logs.with(t, msgRemoving, "a")[0]["verdict"], "orphan_due")
}

func TestS1_WhatTheSourceHasNotSeenIsLeft(t *testing.T) {
	for name, change := range map[string]func(*house, *Candidate){
		"renewed": func(h *house, _ *Candidate) {
			h.put("a", map[string]string{"auto_unlock_at": past.String()})
		},
		"retaken":                  func(h *house, _ *Candidate) { h.release("a"); h.expired("a") },
		"vanished":                 func(h *house, _ *Candidate) { h.release("a") },
		"rewritten":                func(h *house, _ *Candidate) { h.put("a", map[string]string{"hostname": "x"}) },
		"retaken, revision unseen": func(h *house, c *Candidate) { h.release("a"); h.expired("a"); c.Revision = anyRevision },
		"other deadline": func(h *house, c *Candidate) {
			h.put("a", map[string]string{"auto_unlock_at": (past + 1).String()})
			c.Revision = anyRevision
		},
		"other uuid": func(h *house, c *Candidate) {
			h.put("a", map[string]string{"uuid": "x"})
			c.Revision = anyRevision
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired("a")
			c := h.candidate("a")
			change(h, &c)
			left := h.keys()
			require.NoError(t, h.handle(c))
			require.Empty(t, h.kv.sent())
			require.Equal(t, left, h.keys())
			require.EqualValues(t, 1, h.Stats().Conflicts)
			require.Len(t, h.source.postponed(), 1)
		})
	}
}

func TestS1_AnOrphanThatVanishedBeforeTheReadIsAConflict(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": 64 << 10} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.put("a", map[string]string{"backtrace": string(make([]byte, size))})
			c := h.candidate("a")
			h.release("a")
			require.NoError(t, h.handle(c))
			require.Empty(t, h.kv.sent())
			require.EqualValues(t, 1, h.Stats().Conflicts)
			require.Empty(t, h.failures())
		})
	}
}

// A lock that is read in several requests is read at one revision, even where
// the source claims to have seen more.
func TestS1_ALargeLockIsReadAtOneRevision(t *testing.T) {
	for name, fields := range map[string]map[string]string{
		"renewed": {"auto_unlock_at": past.String()},
		"unknown": {"!new": "x"},
		"known":   {"alive_at": past.String()},
	} {
		for _, before := range []int{2, 3} {
			t.Run(fmt.Sprint(name, before), func(t *testing.T) {
				h := newHouse(t, sharedClient(t))
				h.expired("a")
				unknown := make(map[string]string, 1_500)
				for _, f := range names("k%04d", 1_500) {
					unknown[f] = "x"
				}
				h.put("a", unknown)
				c := h.candidate("a")
				c.Revision = anyRevision
				h.kv.beforeRead = func(n int) {
					if n == before+1 { // the first is that of the range
						h.put("a", fields)
					}
				}
				require.NoError(t, h.handle(c))
				require.Equal(t, 2+(1_505+surveyPage)/surveyPage, h.kv.reads)
				require.GreaterOrEqual(t, len(h.keys()), 1_505)
				require.EqualValues(t, 1, h.Stats().Conflicts)
				require.Zero(t, h.removed())
			})
		}
	}
}

// The compares, one by one: each must be able to refuse alone.
func TestS1_EachCompareRefusesAlone(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	now := h.candidate("a").Lock
	other := func(fields map[string]string) lock.Lock {
		h.expired("a")
		h.put("a", fields)
		l := h.candidate("a").Lock
		l.Revision = anyRevision - 1
		return l
	}
	uuid := other(map[string]string{"uuid": "other"})
	deadline := other(map[string]string{"auto_unlock_at": (past + 1).String()})
	h.expired("a")
	old, orphan := now, lock.Lock{Name: "a", Revision: anyRevision - 1}
	from, end := h.Layout.Range("a")
	for name, l := range map[string]*lock.Lock{"uuid": &uuid, "deadline": &deadline, "revision": &old, "orphan": &orphan} {
		resp, err := newTxn(h.cli.Txn(h.ctx), []removal{newRemoval(h.Layout, l, []span{{from, end}})}).Commit()
		require.NoError(t, err, name)
		require.False(t, resp.Succeeded, name)
	}
	require.Len(t, h.keys(), 5)
}
