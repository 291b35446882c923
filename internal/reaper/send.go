package reaper

import (
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is why a removal failed: the label of
// unlocker_forced_unlock_failures_total.
type Reason string

// The reasons.
const (
	ReasonAmbiguous  Reason = "ambiguous"         // no answer: it may have happened
	ReasonUnreadable Reason = "unreadable"        // no answer to the read before: nothing happened
	ReasonTooLarge   Reason = "too_large"         // etcd refuses so big a transaction, even alone
	ReasonPermission Reason = "permission_denied" // the role does not cover the lock
	ReasonAuth       Reason = "auth"              // etcd does not know who asks
	ReasonNoLeader   Reason = "no_leader"         // no quorum
	ReasonBusy       Reason = "busy"              // etcd has too much to do
	ReasonRejected   Reason = "rejected"          // refused for another reason
)

// Reasons lists all reasons, for metrics that are to begin at zero.
func Reasons() []Reason {
	return []Reason{ReasonAmbiguous, ReasonUnreadable, ReasonTooLarge, ReasonPermission, ReasonAuth,
		ReasonNoLeader, ReasonBusy, ReasonRejected}
}

// refusals are the errors after which a request was certainly not executed.
var refusals = map[string]Reason{
	rpctypes.ErrorDesc(rpctypes.ErrGRPCTooManyOps):             ReasonTooLarge,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooLarge):        ReasonTooLarge,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied):       ReasonPermission,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCInvalidAuthToken):       ReasonAuth,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision):        ReasonAuth,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty):              ReasonAuth,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCUserNotFound):           ReasonAuth,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthFailed):             ReasonAuth,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader):               ReasonNoLeader,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests): ReasonBusy,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace):                ReasonRejected,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCCorrupt):                ReasonRejected,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCDuplicateKey):           ReasonRejected,
	rpctypes.ErrorDesc(rpctypes.ErrGRPCEmptyKey):               ReasonRejected,
}

// classify tells whether a transaction was refused, and why. All that is not
// known to be a refusal is ambiguous: it may have been executed.
func classify(err error) Reason {
	if reason, ok := refusals[rpctypes.ErrorDesc(err)]; ok {
		return reason
	}
	var known rpctypes.EtcdError
	if !errors.As(err, &known) && status.Code(err) == codes.ResourceExhausted {
		return ReasonTooLarge // gRPC's own limit on the size of a message
	}
	return ReasonAmbiguous
}

// halvable reasons may lie in one lock of a batch.
func (r Reason) halvable() bool { return r == ReasonTooLarge || r == ReasonPermission }

// send removes locks in one transaction, or in several where they do not fit or
// the server refuses them together, until the culprit stands alone.
func (w *worker) send(batch []*attempt) error {
	switch {
	case len(batch) == 0:
		return nil
	case len(batch) > 1 && !fits(len(batch), costliest(batch)):
		return w.halve(batch)
	}
	if batch = w.standing(batch); len(batch) == 0 {
		return nil
	}
	err := w.commit(batch)
	if err == nil {
		return nil
	}
	switch reason := classify(err); {
	case reason.halvable() && len(batch) > 1:
		return w.halve(batch)
	case reason.halvable():
		w.refused(batch[0], reason, err)
		return nil
	default:
		for _, a := range batch {
			w.failed(a, reason, err)
		}
		return err
	}
}

// standing looks again right before a transaction is sent, as the last one may
// have taken long: at the gate first, so that an outage that ended since is in
// the verdicts. It puts back what is not to be removed now.
func (w *worker) standing(batch []*attempt) []*attempt {
	open := w.gate.open()
	return slices.DeleteFunc(batch, func(a *attempt) bool {
		stands := open && w.verdict(&a.candidate, &a.Lock).Action == Remove
		if !stands {
			w.withdraw(a)
		}
		return !stands
	})
}

func (w *worker) halve(batch []*attempt) error {
	half := len(batch) / 2
	return errors.Join(w.send(batch[:half]), w.send(batch[half:]))
}

func costliest(batch []*attempt) int {
	most := 0
	for _, a := range batch {
		most = max(most, a.removal.cost())
	}
	return most
}

// commit sends one transaction and accounts for what it did.
func (w *worker) commit(batch []*attempt) error {
	removals := make([]removal, len(batch))
	for i, a := range batch {
		removals[i] = a.removal
	}
	ctx, cancel := context.WithTimeout(w.requests, w.RequestTimeout)
	defer cancel()
	resp, err := newTxn(w.KV.Txn(ctx), removals).Commit()
	if err != nil {
		return err
	}
	for i, res := range results(resp, len(batch)) {
		w.answered(batch[i], res)
	}
	return nil
}
