package reaper

import (
	"errors"
	"slices"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// send removes locks in one transaction, or in several where they do not fit or
// the server refuses them together, until the culprit stands alone.
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
		return w.unsent(batch, err)
	}
	for i, a := range batch {
		w.answered(a, results[i])
	}
	return nil
}

// unsent is for a transaction that came back with an error. It returns the error
// where that is one of etcd, not of a single lock.
func (w *worker) unsent(batch []*attempt, err error) error {
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

// confirmDue makes the verdicts once more right before a transaction is sent, as
// the last one may have taken long, and puts back what is not to be removed now.
// It asks the gate first, so that the verdicts include an outage that has ended
// since.
func (w *worker) confirmDue(batch []*attempt) []*attempt {
	open := w.gate.open()
	return slices.DeleteFunc(batch, func(a *attempt) bool {
		stands := open && w.verdictOn(a).Action == verdict.Remove
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

func records(batch []*attempt) []lockstore.Record {
	all := make([]lockstore.Record, len(batch))
	for i, a := range batch {
		all[i] = a.record
	}
	return all
}
