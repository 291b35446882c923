package lockstore

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors of ReadOne and Unlock.
var (
	ErrNoLock    = errors.New("no such lock")
	ErrOtherUUID = errors.New("the lock is held under another uuid")
	ErrNoUUID    = errors.New("there are keys, but no uuid: nobody holds the lock")
	ErrUnsteady  = errors.New("the lock was modified each time between reading and removing it")
	ErrTooLarge  = errors.New("the lock has more keys, or more names nested in it, than one transaction can remove")
	ErrAmbiguous = errors.New("no answer from etcd: the lock may have been removed; asking again is harmless")
)

// Reason is why a request failed: the label of
// unlocker_forced_unlock_failures_total.
type Reason string

// The reasons.
const (
	ReasonAmbiguous  Reason = "ambiguous"         // no answer: the lock may have been removed
	ReasonUnreadable Reason = "unreadable"        // no answer to the read: nothing was sent to remove it
	ReasonTooLarge   Reason = "too_large"         // the transaction is too large, even for the lock alone
	ReasonPermission Reason = "permission_denied" // the role does not cover the lock
	ReasonAuth       Reason = "auth"              // etcd does not accept the credentials
	ReasonNoLeader   Reason = "no_leader"         // no quorum
	ReasonBusy       Reason = "busy"              // etcd is overloaded
	ReasonRejected   Reason = "rejected"          // refused for another reason
	ReasonUnlogged   Reason = "unlogged"          // the record could not be written to the log: nothing was sent
)

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{ReasonAmbiguous, ReasonUnreadable, ReasonTooLarge, ReasonPermission, ReasonAuth,
		ReasonNoLeader, ReasonBusy, ReasonRejected, ReasonUnlogged}
}

// OfOneLock reports whether a single lock of a batch may be the cause, so that a smaller batch
// may succeed.
func (r Reason) OfOneLock() bool { return r == ReasonTooLarge || r == ReasonPermission }

// Classify returns why a request failed. Every error that is not known to be a refusal is
// ReasonAmbiguous: the transaction may have been executed.
func Classify(err error) Reason {
	var known rpctypes.EtcdError
	text, typed := rpctypes.ErrorDesc(err), errors.As(err, &known)
	if typed {
		text = known.Error()
	}
	switch text {
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCTooManyOps), rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooLarge):
		return ReasonTooLarge
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied):
		return ReasonPermission
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCInvalidAuthToken), rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty), rpctypes.ErrorDesc(rpctypes.ErrGRPCUserNotFound),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthFailed):
		return ReasonAuth
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader):
		return ReasonNoLeader
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests):
		return ReasonBusy
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace), rpctypes.ErrorDesc(rpctypes.ErrGRPCCorrupt),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCDuplicateKey), rpctypes.ErrorDesc(rpctypes.ErrGRPCEmptyKey):
		return ReasonRejected
	}
	if !typed && status.Code(err) == codes.ResourceExhausted {
		return ReasonTooLarge // the limit of gRPC on the size of a message
	}
	return ReasonAmbiguous
}
