package reaper

import (
	"errors"
	"slices"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// send removes locks in one transaction. If they do not fit, or if etcd refuses them because of
// one lock, it halves the batch until that lock is alone.
func (w *worker) send(batch []*attempt) error {
	if len(batch) == 0 {
		return nil
	}
	if len(batch) > 1 && !lockstore.Fits(records(batch)...) {
		return w.halve(batch)
	}
	if batch = w.confirmDue(batch); len(batch) == 0 {
		return nil
	}
	results, err := w.Store.Delete(w.requests, records(batch)...)
	if err != nil {
		return w.sendFailed(batch, err)
	}
	for i, a := range batch {
		w.answered(a, results[i])
	}
	return nil
}

// sendFailed handles the error of a transaction. It returns the error if its cause is etcd rather
// than a single lock.
func (w *worker) sendFailed(batch []*attempt, err error) error {
	switch reason := lockstore.Classify(err); {
	case reason.OfOneLock() && len(batch) > 1:
		return w.halve(batch)
	case reason.OfOneLock():
		w.refused(batch[0], reason, err)
		return nil
	default:
		for _, a := range batch {
			w.failed(a, reason, err)
		}
		return err
	}
}

// confirmDue makes the verdicts again right before a transaction is sent, since the previous
// transaction may have taken long. It puts back the locks that must not be removed now. It checks
// the gate first, so that the verdicts include an outage that has ended since.
func (w *worker) confirmDue(batch []*attempt) []*attempt {
	open := w.gate.open()
	return slices.DeleteFunc(batch, func(a *attempt) bool {
		if open && w.verdictOn(a).Action == verdict.Remove {
			return false
		}
		w.withdraw(a)
		return true
	})
}

func (w *worker) halve(batch []*attempt) error {
	half := len(batch) / 2
	return errors.Join(w.send(batch[:half]), w.send(batch[half:]))
}

func records(batch []*attempt) []lockstore.Record {
	all := make([]lockstore.Record, len(batch))
	for i, a := range batch {
		all[i] = a.record
	}
	return all
}
