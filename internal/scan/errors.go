package scan

import (
	"errors"
	"slices"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

// Reason is why a watch ended or a listing failed: the label of
// unlocker_watch_restarts_total.
type Reason = etcd.Reason

// ReasonRegressed is that etcd was restored or diverged: it shows another cluster, an older
// revision, or other writes.
const ReasonRegressed Reason = "regressed"

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{
		etcd.Compacted, etcd.NoLeader, etcd.Auth, etcd.PermissionDenied, etcd.Stalled,
		etcd.Ended, ReasonRegressed, etcd.Timeout, etcd.Unavailable, etcd.Other,
	}
}

var errRegressed = errors.New("etcd was restored or diverged: another cluster, an older revision, or other writes")

// classify returns the reason of an error.
func classify(err error) Reason {
	if errors.Is(err, errRegressed) || errors.Is(err, table.ErrOlder) {
		return ReasonRegressed
	}
	if reason := etcd.Classify(err); slices.Contains(Reasons(), reason) {
		return reason
	}
	return etcd.Other
}
