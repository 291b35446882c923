package metrics

import (
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Label values are truncated to these numbers of bytes, and an ellipsis is appended. The
// ledger and the table use the same numbers, so that a lock has the same label in every
// series.
const (
	maxName = 512
	maxHost = 253
)

// view is a snapshot with its per-lock series selected and labeled.
type view struct {
	Snapshot
	overdue []table.View
	forced  []api.Forced
}

func newView(s Snapshot, maximum int) *view {
	v := &view{Snapshot: s}
	v.chooseOverdue(maximum)
	v.chooseForced(maximum)
	return v
}

// chooseOverdue merges by name alone, not by all labels of unlocker_lock_info: queries
// join other series with it, which requires one series for each lock. Of locks with the
// same label, the one overdue longest is kept.
func (v *view) chooseOverdue(maximum int) {
	seen := make(map[string]bool, min(maximum, len(v.Table.Overdue)))
	for _, l := range v.Table.Overdue {
		if len(v.overdue) >= maximum {
			return
		}
		if l.Name = label(l.Name, maxName); !seen[l.Name] {
			seen[l.Name] = true
			v.overdue = append(v.overdue, l)
		}
	}
}

// chooseForced keeps the newest removal for each set of labels.
func (v *view) chooseForced(maximum int) {
	seen := make(map[[4]string]bool, min(maximum, len(v.Forced)))
	for _, r := range v.Forced {
		if len(v.forced) >= maximum {
			return
		}
		r.Name, r.Hostname, r.Owner = label(r.Name, maxName), label(r.Hostname, maxHost), label(r.Owner, maxHost)
		labels := [...]string{r.Name, r.Hostname, r.Owner, string(r.Trigger)}
		if !seen[labels] {
			seen[labels] = true
			v.forced = append(v.forced, r)
		}
	}
}

// omitted returns the number of locks past their alert time that have no series of their
// own: beyond the limit, or merged with another lock.
func (v *view) omitted() int {
	return max(0, v.Table.OverdueTotal-len(v.overdue))
}

// label returns a valid label value for untrusted text. It is idempotent.
func label(s string, maximum int) string {
	// A name may have a megabyte; Clip needs no more than this.
	return protocol.Clip([]byte(s[:min(len(s), 2*maximum)]), maximum)
}
