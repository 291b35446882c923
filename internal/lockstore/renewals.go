package lockstore

import (
	"context"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Renewal is a write of auto_unlock_at after the acquisition.
type Renewal struct {
	Revision int64
	// At is the alive_at that was written with it, 0 if there was none.
	At protocol.Timestamp
	// Before has the uuid and the times of the lock as they were before, and is empty if that is
	// not known.
	Before protocol.Lock
}

// renewals reads the renewals of a period backwards from its last fields.
func (w *walk) renewals(ctx context.Context, p *Period, last fields) error {
	deadline := last[protocol.FieldAutoUnlockAt]
	if deadline == nil || deadline.ModRevision <= p.Since {
		return nil
	}
	before, err := w.before(ctx, p, last)
	if err != nil {
		return err
	}
	uuid := last[protocol.FieldUUID]
	asked := []protocol.Field{protocol.FieldLockedAt, protocol.FieldAliveAt, protocol.FieldAutoUnlockAt}
	for now := w.lock(last); deadline != nil && deadline.ModRevision > p.Since && len(p.Renewals) < w.Renewals; {
		r := Renewal{Revision: deadline.ModRevision, At: now.AliveAt()}
		deadline = nil
		if r.Revision > w.oldest {
			then, err := w.read(ctx, r.Revision-1, asked)
			if err != nil {
				return err
			}
			deadline, then[protocol.FieldUUID] = then[protocol.FieldAutoUnlockAt], uuid
			now = w.lock(then)
			r.Before = now
		}
		p.Renewals = append(p.Renewals, r)
	}
	p.More = max(0, last[protocol.FieldAutoUnlockAt].Version-before-int64(len(p.Renewals)))
	return nil
}

// before returns how often auto_unlock_at had been written when the period began, or at the
// oldest revision that etcd has where the period and the key are older.
func (w *walk) before(ctx context.Context, p *Period, last fields) (int64, error) {
	switch created := last[protocol.FieldAutoUnlockAt].CreateRevision; {
	case created > p.Since:
		return 0, nil
	case created == p.Since:
		return 1, nil
	}
	then, err := w.read(ctx, max(p.Since, w.oldest), []protocol.Field{protocol.FieldAutoUnlockAt})
	return then[protocol.FieldAutoUnlockAt].GetVersion(), err
}
