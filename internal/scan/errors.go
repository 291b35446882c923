package scan

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

// Reason is why a watch ended or a listing failed: the label of
// unlocker_watch_restarts_total.
type Reason string

// The reasons.
const (
	ReasonCompacted  Reason = "compacted"         // the next revision has been compacted
	ReasonNoLeader   Reason = "no_leader"         // the member has no leader
	ReasonAuth       Reason = "auth"              // token expired, or authentication changed
	ReasonPermission Reason = "permission_denied" // the role does not cover the prefix
	ReasonStalled    Reason = "stalled"           // no event and no progress notice for the freshness
	ReasonEnded      Reason = "ended"             // closed without an error
	ReasonRegressed  Reason = "regressed"         // another cluster, or an older history
	ReasonTimeout    Reason = "timeout"           // a request exceeded its deadline
	ReasonDown       Reason = "unavailable"       // no member answers
	ReasonOther      Reason = "other"
)

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{
		ReasonCompacted, ReasonNoLeader, ReasonAuth, ReasonPermission, ReasonStalled,
		ReasonEnded, ReasonRegressed, ReasonTimeout, ReasonDown, ReasonOther,
	}
}

var errRegressed = errors.New("etcd shows another history: another cluster, an older revision, or other writes")

// classify returns the reason of an error. It compares texts, since the errors of a watch lose
// their type: errors.Is(err, ErrInvalidAuthToken) is false for a canceled watch (etcd#17623).
func classify(err error) Reason {
	switch {
	case errors.Is(err, etcd.ErrSilent):
		return ReasonStalled
	case errors.Is(err, etcd.ErrEnded):
		return ReasonEnded
	case errors.Is(err, errRegressed), errors.Is(err, table.ErrOlder):
		return ReasonRegressed
	case errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "connection error: "):
		return ReasonDown // the text of gRPC if it had no connection
	case errors.Is(err, context.DeadlineExceeded):
		return ReasonTimeout
	}
	text := rpctypes.ErrorDesc(err)
	for _, known := range []struct {
		err    error
		reason Reason
	}{
		{rpctypes.ErrGRPCCompacted, ReasonCompacted},
		{rpctypes.ErrGRPCNoLeader, ReasonNoLeader},
		{rpctypes.ErrGRPCPermissionDenied, ReasonPermission},
		{rpctypes.ErrGRPCInvalidAuthToken, ReasonAuth},
		{rpctypes.ErrGRPCAuthOldRevision, ReasonAuth},
		{rpctypes.ErrGRPCUserEmpty, ReasonAuth},
		{rpctypes.ErrGRPCUserNotFound, ReasonAuth},
		{rpctypes.ErrGRPCAuthFailed, ReasonAuth},
	} {
		if strings.Contains(text, rpctypes.ErrorDesc(known.err)) {
			return known.reason
		}
	}
	switch etcd.Code(err) {
	case codes.DeadlineExceeded:
		return ReasonTimeout
	case codes.Unavailable:
		return ReasonDown
	}
	return ReasonOther
}
