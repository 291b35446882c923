package lockstore

import (
	"errors"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
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
	ReasonAmbiguous  Reason = "ambiguous"  // no answer: the lock may have been removed
	ReasonUnreadable Reason = "unreadable" // no answer to the read: nothing was sent to remove it
	ReasonUnlogged   Reason = "unlogged"   // the record could not be written to the log: nothing was sent

	ReasonTooLarge   = Reason(etcd.TooLarge)         // the transaction is too large, even for the lock alone
	ReasonPermission = Reason(etcd.PermissionDenied) // the role does not cover the lock
	ReasonAuth       = Reason(etcd.Auth)             // etcd does not accept the credentials
	ReasonNoLeader   = Reason(etcd.NoLeader)         // no quorum
	ReasonBusy       = Reason(etcd.Busy)             // etcd is overloaded
	ReasonRejected   = Reason(etcd.Rejected)         // refused for another reason
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
	switch r := Reason(etcd.Classify(err)); r {
	case ReasonTooLarge, ReasonPermission, ReasonAuth, ReasonNoLeader, ReasonBusy, ReasonRejected:
		return r
	case Reason(etcd.NoSpace):
		return ReasonRejected
	}
	return ReasonAmbiguous
}
