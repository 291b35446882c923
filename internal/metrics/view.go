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
	return &view{
		Snapshot: s,
		// By name alone, not by all labels of unlocker_lock_info: queries join other series
		// with it, which requires one series for each lock.
		overdue: distinct(s.Table.Overdue, maximum, func(l *table.View) string {
			l.Name = label(l.Name, maxName)
			return l.Name
		}),
		forced: distinct(s.Forced, maximum, func(r *api.Forced) [4]string {
			r.Name, r.Hostname, r.Owner = label(r.Name, maxName), label(r.Hostname, maxHost), label(r.Owner, maxHost)
			return [...]string{r.Name, r.Hostname, r.Owner, string(r.Trigger)}
		}),
	}
}

// distinct returns the first value for each set of labels, up to a maximum. The function makes the labels.
func distinct[T any, K comparable](all []T, maximum int, labels func(*T) K) (kept []T) {
	seen := make(map[K]bool, min(maximum, len(all)))
	for _, v := range all {
		if len(kept) >= maximum {
			break
		}
		if key := labels(&v); !seen[key] {
			seen[key] = true
			kept = append(kept, v)
		}
	}
	return kept
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
