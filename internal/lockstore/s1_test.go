package lockstore

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// The forms that a deletion takes: one range; the gaps between nested names; read
// field by field with its gaps, or, where very much is nested, key by key.
var forms = map[string]func(h *harness){
	"range":  func(*harness) {},
	"nested": func(h *harness) { h.expired("a/nested", "a/i") },
	// Between these two lies no key of the lock, until "j" comes.
	"empty gap": func(h *harness) { h.expired("a/i", "a/k") },
	"large":     func(h *harness) { h.set("a", "backtrace", strings.Repeat("x", 64<<10)) },
	"crowd":     func(h *harness) { h.crowd("a/z%04d/uuid", 1_100) },
	"crowded field": func(h *harness) {
		h.set("a", "unknown", "x")
		h.crowd("a/z%03d/uuid", 300)
	},
}

// What may happen between the verdict and its transaction.
var changes = map[string]struct {
	change func(h *harness)
	// except names the forms that are documented not to notice: a new unknown key
	// between more nested names than a transaction can guard.
	except []string
}{
	"renewed": {change: func(h *harness) {
		h.set("a", "auto_unlock_at", protocol.TimestampOf(time.Now().Add(time.Hour)).String())
	}},
	"renewed within the second": {change: func(h *harness) { h.set("a", "auto_unlock_at", past) }},
	"first alive_at":            {change: func(h *harness) { h.set("a", "alive_at", past) }},
	"answered":                  {change: func(h *harness) { h.set("a", "answered_at", past, "stack", "goroutine 1", "status", "x") }},
	"released":                  {change: func(h *harness) { h.release("a") }},
	"taken again": {change: func(h *harness) {
		h.release("a")
		h.set("a", "uuid", "other", "hostname", "host", "locked_at", past, "auto_unlock_at", past, "purpose", "test")
	}},
	"taken again, as it was": {change: func(h *harness) {
		h.release("a")
		h.expired("a")
	}},
	"uuid put again":  {change: func(h *harness) { h.set("a", "uuid", "u-a") }},
	"other hostname":  {change: func(h *harness) { h.set("a", "hostname", "other") }},
	"unknown first":   {except: []string{"crowd"}, change: func(h *harness) { h.set("a", "!new", "x") }},
	"unknown between": {except: []string{"crowd"}, change: func(h *harness) { h.set("a", "j", "x") }},
	"unknown last":    {except: []string{"crowd", "crowded field"}, change: func(h *harness) { h.set("a", "~new", "x") }},
}

func TestS1_NothingIsRemovedThatChangedAfterTheVerdict(t *testing.T) {
	for form, prepare := range forms {
		for change, c := range changes {
			if slices.Contains(c.except, form) {
				continue
			}
			t.Run(form+"/"+change, func(t *testing.T) {
				h := newHarness(t)
				h.expired("a")
				prepare(h)
				records := h.read("a")
				c.change(h)
				after := h.keys()
				require.Equal(t, []int64{0}, h.deleted(records...))
				require.Equal(t, after, h.keys())
			})
		}
		t.Run(form+"/unchanged", func(t *testing.T) {
			h := newHarness(t)
			h.expired("a")
			prepare(h)
			_, others := h.under("a")
			h.remove("a")
			require.ElementsMatch(t, others, h.keys())
		})
	}
}

func TestS1_OrphansThatChangeAreLeft(t *testing.T) {
	for name, change := range map[string]func(h *harness){
		"uuid appears":        func(h *harness) { h.set("a", "uuid", "u") },
		"field rewritten":     func(h *harness) { h.set("a", "alert_at", past) },
		"field added":         func(h *harness) { h.set("a", "pid", "1") },
		"unknown field added": func(h *harness) { h.set("a", "x", "1") },
		"vanished":            func(h *harness) { h.release("a") },
	} {
		for form, nested := range map[string][]string{"range": nil, "nested": {"a/b", "a/o"}} {
			t.Run(name+"/"+form, func(t *testing.T) {
				h := newHarness(t)
				h.set("a", "auto_unlock_at", past, "alert_at", past)
				h.expired(nested...)
				records := h.read("a")
				change(h)
				after := h.keys()
				require.Equal(t, []int64{0}, h.deleted(records...))
				require.Equal(t, after, h.keys())
			})
		}
	}
}

// A lock that is read in several requests is read at one revision: also its known fields, where
// these are read one by one.
func TestS1_ALargeLockIsReadAtOneRevision(t *testing.T) {
	for name, field := range map[string]string{"renewed": "auto_unlock_at", "unknown": "!new", "known": "alive_at"} {
		const fields = int(protocol.FieldUUID - protocol.FieldUnknown)
		for _, before := range []int{-3, -2, 2, fields, fields + 1, fields + 2} { // the first one's revision is that of all
			t.Run(fmt.Sprint(name, before), func(t *testing.T) {
				h, before, fields, size := newHarness(t), before, fields, 64<<10
				if before < 0 {
					before, fields, size = -before, 1, 1
				}
				h.expired("a")
				h.set("a", "backtrace", strings.Repeat("x", size))
				h.crowd("a/k%04d", 1_499)
				h.beforeRead = func(n int) {
					if n == before {
						h.set("a", field, past)
					}
				}
				records := h.read("a")
				const few = firstPage + 4*firstPage // keys of the first two pages
				require.Equal(t, fields+2+(1_505-few+surveyPage-1)/surveyPage, h.reads)
				after := h.keys()
				require.GreaterOrEqual(t, len(after), 1_505)
				require.Equal(t, []int64{0}, h.deleted(records...))
				require.Equal(t, after, h.keys())
			})
		}
	}
}

// The compares, one by one: each must be able to refuse alone.
func TestS1_EachCompareRefusesAlone(t *testing.T) {
	const newest = math.MaxInt64 - 1 // a revision that no key exceeds
	for name, c := range map[string]struct {
		read     []string
		revision int64
	}{
		"uuid":     {[]string{"uuid", "other", "auto_unlock_at", past}, newest},
		"deadline": {[]string{"uuid", "u-a", "auto_unlock_at", "1700000001"}, newest},
		"orphan":   {[]string{"auto_unlock_at", past}, newest},
		"revision": {[]string{"uuid", "u-a", "auto_unlock_at", past}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.set("a", c.read...)
			records := h.read("a")
			h.expired("a")
			records[0].Revision = max(records[0].Revision, c.revision)
			require.Equal(t, []int64{0}, h.deleted(records...))
			require.Len(t, h.keys(), 5)
		})
	}
}
