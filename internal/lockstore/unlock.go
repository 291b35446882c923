package lockstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// smallLock is the number of keys up to which a lock of unknown size is read at
// once: more than a healthy one has, and little memory even where all are big.
const smallLock = 16

// ReadOne reads one lock. The error is ErrNoLock where there is no key under the
// name, and one of lock.ValidateName where no lock can have the name.
func (st Store) ReadOne(ctx context.Context, name string) (Record, error) {
	if err := lock.ValidateName(name); err != nil {
		return Record{}, err
	}
	rec, err := st.readOne(ctx, lock.Lock{Name: name, Keys: smallLock - 1})
	switch {
	case err != nil:
		return Record{}, fmt.Errorf("read lock %q: %w", lock.Clip([]byte(name), MaxName), err)
	case rec.Keys == 0:
		return Record{}, ErrNoLock
	}
	return rec, nil
}

func (st Store) readOne(ctx context.Context, l lock.Lock) (Record, error) {
	records, err := st.Read(ctx, []lock.Lock{l})
	if err != nil {
		return Record{}, err
	}
	if records[0].Unread() {
		return st.ReadLarge(ctx, l)
	}
	return records[0], nil
}

// maxUnlockTries is how often a removal is tried where the holder renews between
// the read and the transaction.
const maxUnlockTries = 10

// Unlock removes a lock because a person asked for it: whole, in one transaction
// that compares its uuid, whatever its times are and whatever hold is in force. It
// returns the lock as it was removed, and the revision of the deletion. The error
// is one of ReadOne, ErrOtherUUID, ErrNoUUID, ErrUnsteady, ErrTooLarge or
// ErrAmbiguous, or etcd's.
func (st Store) Unlock(ctx context.Context, name, uuid string) (rec Record, revision int64, err error) {
	token := int64(0)
	for range maxUnlockTries {
		rec, err := st.ReadOne(ctx, name)
		if err != nil {
			return Record{}, 0, err
		}
		if err := rec.heldBy(uuid); err != nil {
			return rec, 0, err
		}
		if token = cmp.Or(token, rec.Token); token != rec.Token {
			return rec, 0, ErrOtherUUID // released and taken again, under the same uuid
		}
		res, err := st.unlock(ctx, rec, uuid)
		if err != nil || res.Deleted > 0 {
			return rec, res.Revision, err
		}
	}
	return Record{}, 0, ErrUnsteady
}

// heldBy compares the value of the uuid key itself, which may be one that the
// protocol does not allow.
func (r *Record) heldBy(uuid string) error {
	for _, f := range r.fields {
		if f.name != lock.FieldUUID.String() {
			continue
		}
		if string(f.value) != uuid {
			return ErrOtherUUID
		}
		return nil
	}
	return ErrNoUUID
}

func (st Store) unlock(ctx context.Context, rec Record, uuid string) (Result, error) {
	if !Fits(rec) {
		return Result{}, ErrTooLarge
	}
	results, err := st.commit(ctx, []deletion{st.manual(&rec, uuid)})
	switch {
	case err == nil:
		return results[0], nil
	case Classify(err) == ReasonAmbiguous:
		return Result{}, fmt.Errorf("%w (%w)", ErrAmbiguous, err)
	}
	return Result{}, fmt.Errorf("remove its keys: %w", err)
}
