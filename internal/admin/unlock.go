package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// OtherHolder is the error of an unlock with a uuid that is not, or no longer, the uuid of
// the lock.
type OtherHolder struct {
	// Lock is the lock as it is held now.
	Lock Detail
}

func (e *OtherHolder) Error() string {
	return fmt.Sprintf("lock %s is held under another uuid: nothing was removed", quoted(e.Lock.Name))
}

func (e *OtherHolder) Unwrap() error { return lockstore.ErrOtherUUID }

// Unlock removes a lock if it is held under the given uuid. First it passes the lock to
// confirm and returns its error, if any. Renewals in the meantime do not matter. If the
// lock is then held under another uuid, nothing is removed and the error is OtherHolder.
// ErrAmbiguous means that etcd did not answer and the lock may or may not be removed.
func (a *Admin) Unlock(ctx context.Context, name, uuid string, confirm func(Detail) error) (api.Forced, error) {
	shown, err := a.Show(ctx, name)
	if err != nil {
		return api.Forced{}, err
	}
	if err := heldUnder(shown, uuid); err != nil {
		return api.Forced{}, err
	}
	if err := confirm(shown); err != nil {
		return api.Forced{}, err
	}
	entry, revision, err := a.store.Unlock(ctx, name, uuid)
	switch {
	case errors.Is(err, lockstore.ErrNoLock):
		return api.Forced{}, fmt.Errorf("%w: it was released or removed meanwhile", a.missing(ctx, name))
	case errors.Is(err, lockstore.ErrOtherUUID):
		now, err := a.detail(ctx, entry)
		if err != nil {
			return api.Forced{}, a.failed(ctx, err, etcd.Read)
		}
		return api.Forced{}, &OtherHolder{now}
	case err != nil:
		return api.Forced{}, a.failed(ctx, fmt.Errorf("lock %s: %w", quoted(name), err), etcd.ReadWrite)
	}
	return a.removed(entry, revision), nil
}

// heldUnder avoids asking for confirmation if the transaction, which compares the uuid
// again, could only fail. A lock with an invalid uuid is left to the transaction.
func heldUnder(d Detail, uuid string) error {
	switch {
	case d.Token == 0:
		return fmt.Errorf("lock %s: %w", quoted(d.Name), lockstore.ErrNoUUID)
	case d.UUID != "" && d.UUID != uuid:
		return &OtherHolder{d}
	}
	return nil
}

func (a *Admin) removed(e lockstore.Record, revision int64) api.Forced {
	now := a.now().UTC()
	l := api.NewLock(&e.Lock, now)
	fields, more := e.Shown()
	f := api.Forced{
		At: now, Name: l.Name, UUID: l.UUID, Hostname: l.Hostname, Owner: l.Owner,
		Trigger: string(verdict.Manual), Revision: revision, MoreFields: more,
	}
	for _, field := range fields {
		f.Fields = append(f.Fields, api.Field(field))
	}
	return f
}
