package metrics

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Label values are cut behind these numbers of bytes, where an ellipsis follows.
// They are those of the ledger and of the table, so that a lock has the same
// label in every series.
const (
	maxName = 512
	maxHost = 253
)

// view is a snapshot with its per-lock series chosen and labelled.
type view struct {
	Snapshot
	overdue []overdue
	forced  []forced
}

type overdue struct {
	name string
	lock *lock.Lock
}

type forced struct {
	forcedKey
	at time.Time
}

type forcedKey struct{ name, host string }

func newView(s Snapshot, most int) *view {
	v := &view{Snapshot: s}
	v.chooseOverdue(most)
	v.chooseForced(most)
	return v
}

// chooseOverdue merges by name alone, not by all labels of unlocker_lock_info:
// a query joins the other series to it, which takes one of it for each lock. The
// longest overdue stays.
func (v *view) chooseOverdue(most int) {
	seen := make(map[string]bool, min(most, len(v.Table.Overdue)))
	for i := range v.Table.Overdue {
		if len(v.overdue) >= most {
			return
		}
		l := &v.Table.Overdue[i]
		name := label(l.Name, maxName)
		if !seen[name] {
			seen[name] = true
			v.overdue = append(v.overdue, overdue{name, l})
		}
	}
}

// chooseForced keeps the newest removal for each set of labels.
func (v *view) chooseForced(most int) {
	seen := make(map[forcedKey]bool, min(most, len(v.Forced)))
	for i := range v.Forced {
		if len(v.forced) >= most {
			return
		}
		r := &v.Forced[i]
		key := forcedKey{label(r.Name, maxName), label(r.Hostname, maxHost)}
		if !seen[key] {
			seen[key] = true
			v.forced = append(v.forced, forced{key, r.At})
		}
	}
}

// omitted is the number of locks past their alert time that have no series of
// their own: beyond the cap, or merged with another's.
func (v *view) omitted() int {
	return max(0, v.Table.OverdueTotal-len(v.overdue))
}

// label makes a label value of what somebody wrote. It is idempotent.
func label(s string, most int) string {
	// Clip does not look further, and a name may have a megabyte.
	return lock.Clip([]byte(s[:min(len(s), 2*most)]), most)
}
