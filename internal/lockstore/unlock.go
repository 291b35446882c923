package lockstore

import (
	"cmp"
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// smallLock is the maximum number of keys of a lock of unknown size that are read by one range:
// more than a usual lock has, and few enough to limit the memory if all values are big.
const smallLock = 16

// ReadOne reads one lock. The error is ErrNoLock if there is no key under the name, and that of
// protocol.ValidateName if the name is not valid.
func (st Store) ReadOne(ctx context.Context, name string) (Record, error) {
	if err := protocol.ValidateName(name); err != nil {
		return Record{}, err
	}
	rec, err := st.ReadAlone(ctx, protocol.Lock{Name: name, Keys: smallLock - 1})
	switch {
	case err != nil:
		return Record{}, fmt.Errorf("read lock %q: %w", protocol.Clip([]byte(name), protocol.MaxName), err)
	case rec.Keys == 0:
		return Record{}, ErrNoLock
	}
	return rec, nil
}

// ReadAlone reads a lock whole, in as many requests as that takes.
func (st Store) ReadAlone(ctx context.Context, l protocol.Lock) (Record, error) {
	records, err := st.Read(ctx, []protocol.Lock{l})
	if err != nil {
		return Record{}, err
	}
	if records[0].Unread() {
		return st.readLarge(ctx, l)
	}
	return records[0], nil
}

// maxUnlockTries is the maximum number of attempts if the holder renews between the read and
// the transaction.
const maxUnlockTries = 10

// Trace returns what a manual unlock writes in the transaction that removes the lock, outside of
// the prefix of the locks. It is called when the uuid is known to be right, and again if the lock
// was renewed in the meantime. Its error ends the unlock.
type Trace func(ctx context.Context, removed Record) (clientv3.Op, error)

// Held is what a manual unlock compares.
type Held struct {
	UUID string
	// Token, unless it is 0, is that of the acquisition, and Newest the newest revision that a key of the lock may have.
	Token, Newest int64
}

// Unlock is a manual unlock. It removes the whole lock in one transaction that compares the
// uuid, regardless of the times of the lock and of holds, and leaves the trace, unless that is nil.
// It returns the removed lock and the revision of the deletion. The error is one of ReadOne,
// ErrOtherUUID, ErrRenewed, ErrNoUUID, ErrUnsteady, ErrTooLarge or ErrAmbiguous, or an error of etcd.
func (st Store) Unlock(ctx context.Context, name string, held Held, trace Trace) (rec Record, revision int64, err error) {
	token := held.Token
	for range maxUnlockTries {
		rec, err := st.ReadOne(ctx, name)
		if err != nil {
			return Record{}, 0, err
		}
		if err := rec.heldBy(held.UUID); err != nil {
			return rec, 0, err
		}
		if token = cmp.Or(token, rec.Token); token != rec.Token {
			return rec, 0, ErrOtherUUID // released, and acquired again with the same uuid
		}
		if held.Newest != 0 && rec.Revision > held.Newest {
			return rec, 0, ErrRenewed
		}
		deleted, revision, err := st.unlock(ctx, rec, held.UUID, trace)
		if err != nil || deleted > 0 {
			return rec, revision, err
		}
	}
	return Record{}, 0, ErrUnsteady
}

// heldBy compares uuid with the value of the uuid key, even if the protocol does not allow that
// value.
func (r *Record) heldBy(uuid string) error {
	for _, f := range r.fields {
		if f.name != protocol.FieldUUID.String() {
			continue
		}
		if string(f.value) != uuid {
			return ErrOtherUUID
		}
		return nil
	}
	return ErrNoUUID
}

func (st Store) unlock(ctx context.Context, rec Record, uuid string, trace Trace) (deleted, revision int64, err error) {
	if !Fits(rec) {
		return 0, 0, ErrTooLarge
	}
	var put []clientv3.Op
	if trace != nil {
		left, err := trace(ctx, rec)
		if err != nil {
			return 0, 0, err
		}
		put = append(put, left)
	}
	resp, err := st.commit(ctx, st.manual(&rec, uuid, put))
	switch {
	case err == nil:
		return deletedBy(resp), resp.Header.Revision, nil
	case Classify(err) == ReasonAmbiguous:
		return 0, 0, fmt.Errorf("%w (%w)", ErrAmbiguous, err)
	}
	return 0, 0, fmt.Errorf("remove its keys: %w", err)
}
