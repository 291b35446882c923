package etcd

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is why a request or a watch failed. Its value is a label of metrics.
type Reason string

// The reasons. With those from TooLarge to Rejected, etcd has refused a request: it has certainly
// not executed it. With all others it may have.
const (
	TooLarge         Reason = "too_large"         // more than etcd or gRPC takes at once
	PermissionDenied Reason = "permission_denied" // the role does not cover the keys
	Auth             Reason = "auth"              // token expired, authentication changed, credentials refused
	NoLeader         Reason = "no_leader"         // the member has no leader
	Busy             Reason = "busy"              // etcd is overloaded
	NoSpace          Reason = "no_space"          // the quota is full
	Compacted        Reason = "compacted"         // the revision has been compacted
	Rejected         Reason = "rejected"          // refused for another reason

	Stalled     Reason = "stalled"     // ErrSilent
	Ended       Reason = "ended"       // ErrEnded
	Timeout     Reason = "timeout"     // a request exceeded its deadline
	Unavailable Reason = "unavailable" // no member answers
	Other       Reason = "other"
)

var (
	// ErrSilent is the error of a watch that shows nothing for too long.
	ErrSilent = errors.New("no event and no progress notice from the watch")
	// ErrEnded is the error of a watch that ends without an error of etcd.
	ErrEnded = errors.New("watch closed by the server")
)

// Classify returns the reason of an error of the client or of a Watch.
func Classify(err error) Reason {
	switch {
	case errors.Is(err, ErrSilent):
		return Stalled
	case errors.Is(err, ErrEnded):
		return Ended
	case errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "connection error: "):
		return Unavailable // the text of gRPC if it had no connection
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Other
	}
	for _, known := range refusals() {
		if is(err, known.err) {
			return known.reason
		}
	}
	typed := errors.As(err, new(rpctypes.EtcdError))
	switch code := Code(err); {
	case code == codes.ResourceExhausted && !typed:
		return TooLarge // the limit of gRPC on the size of a message
	case code == codes.DeadlineExceeded:
		return Timeout
	case code == codes.Unavailable:
		return Unavailable
	}
	return Other
}

type refusal struct {
	err    error
	reason Reason
}

func refusals() []refusal {
	return []refusal{
		{rpctypes.ErrGRPCCompacted, Compacted},
		{rpctypes.ErrGRPCNoLeader, NoLeader},
		{rpctypes.ErrGRPCPermissionDenied, PermissionDenied},
		{rpctypes.ErrGRPCInvalidAuthToken, Auth},
		{rpctypes.ErrGRPCAuthOldRevision, Auth},
		{rpctypes.ErrGRPCUserEmpty, Auth},
		{rpctypes.ErrGRPCUserNotFound, Auth},
		{rpctypes.ErrGRPCAuthFailed, Auth},
		{rpctypes.ErrGRPCTooManyOps, TooLarge},
		{rpctypes.ErrGRPCRequestTooLarge, TooLarge},
		{rpctypes.ErrGRPCRequestTooManyRequests, Busy},
		{rpctypes.ErrGRPCNoSpace, NoSpace},
		{rpctypes.ErrGRPCCorrupt, Rejected},
		{rpctypes.ErrGRPCDuplicateKey, Rejected},
		{rpctypes.ErrGRPCEmptyKey, Rejected},
	}
}

// is reports whether err is a known error of etcd. It compares texts, since the errors of a watch
// lose their type: errors.Is(err, ErrInvalidAuthToken) is false for a canceled watch (etcd#17623).
func is(err, known error) bool {
	text := rpctypes.ErrorDesc(err)
	if typed := (rpctypes.EtcdError{}); errors.As(err, &typed) {
		text = typed.Error()
	}
	return strings.HasSuffix(text, rpctypes.ErrorDesc(known))
}

// Code returns the gRPC code of an error, also if it is a rpctypes.EtcdError.
func Code(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}
