package reaper

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Entry is a lock as etcd held it at one revision.
type Entry struct {
	lock.Lock
	// Fields are its keys, those that are known first; More counts those that
	// are left out.
	Fields []Field
	More   int
}

// What can be wrong with what a person asks for.
var (
	ErrNoLock    = errors.New("no such lock")
	ErrOtherUUID = errors.New("the lock is held under another uuid")
	ErrNoUUID    = errors.New("there are keys, but no uuid: nobody holds the lock")
	ErrUnsteady  = errors.New("the lock changed each time between reading and removing it")
	ErrTooLarge  = errors.New("the lock has more keys, or more names nested in it, than one transaction can remove")
	ErrAmbiguous = errors.New("no answer from etcd: the lock may be removed or not; to ask again is harmless")
)

// What people are shown of a lock is bounded, less so than what is logged.
const (
	maxShownFields = 256
	maxShownValue  = 64 << 10
	maxShownBytes  = 1 << 20 // of all
)

// Read returns a lock with its fields. The error is ErrNoLock where there is no
// key under the name, and one of lock.ValidateName where there can be none.
func (st Store) Read(ctx context.Context, name string) (Entry, error) {
	rec, err := st.whole(ctx, name)
	if err != nil {
		return Entry{}, err
	}
	return rec.entry(), nil
}

// shownAtOnce is the number of keys up to which a lock of which nothing is known is
// read at once: more than a healthy one has, and not much memory where all are big.
const shownAtOnce = 16

// whole reads one lock of which nothing is known.
func (st Store) whole(ctx context.Context, name string) (record, error) {
	if err := lock.ValidateName(name); err != nil {
		return record{}, err
	}
	unknown := Candidate{Lock: lock.Lock{Name: name, Keys: shownAtOnce - 1}}
	records, err := st.read(ctx, []Candidate{unknown})
	switch {
	case err != nil:
		return record{}, fmt.Errorf("read lock %q: %w", lock.Clip([]byte(name), maxLogName), err)
	case records[0].Keys == 0:
		return record{}, ErrNoLock
	}
	return records[0], nil
}

func (rec record) entry() Entry {
	e := Entry{Lock: rec.Lock, Fields: rec.bounded(maxShownFields, maxShownValue)}
	total := 0
	for i, f := range e.Fields {
		if total += len(f.Name) + len(f.Value); total > maxShownBytes {
			e.Fields = e.Fields[:i]
			break
		}
	}
	e.More = int(rec.Keys) - len(e.Fields)
	return e
}

// unlockTries is how often a removal is tried anew where the owner renews
// between the read and the transaction.
const unlockTries = 10

// Unlock removes a lock because a person asked for it: whole, in one
// transaction that compares its uuid, whatever its times say, and whatever hold
// is in force. It returns the lock as it was removed, and the revision of the
// deletion. Besides what Read returns, the error may be any of those above.
func (st Store) Unlock(ctx context.Context, name, uuid string) (e Entry, revision int64, err error) {
	token := int64(0)
	for range unlockTries {
		rec, err := st.whole(ctx, name)
		if err != nil {
			return Entry{}, 0, err
		}
		if err := rec.heldBy(uuid); err != nil {
			return rec.entry(), 0, err
		}
		if token = cmp.Or(token, rec.Token); token != rec.Token {
			return rec.entry(), 0, ErrOtherUUID // released and taken again, under the same uuid
		}
		res, err := st.remove(ctx, rec, uuid)
		if err != nil || res.deleted > 0 {
			return rec.entry(), res.revision, err
		}
	}
	return Entry{}, 0, ErrUnsteady
}

// heldBy compares the very value of the uuid key, which may be none that we
// would take for a uuid.
func (rec record) heldBy(uuid string) error {
	for _, f := range rec.fields {
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

func (st Store) remove(ctx context.Context, rec record, uuid string) (result, error) {
	r := newUnlock(st.Layout, rec, uuid)
	if len(rec.spans) == 0 || r.cost() > maxTxnOps {
		return result{}, ErrTooLarge
	}
	ctx, cancel := context.WithTimeout(ctx, st.RequestTimeout)
	defer cancel()
	resp, err := newTxn(st.KV.Txn(ctx), []removal{r}).Commit()
	switch {
	case err == nil:
		return results(resp, 1)[0], nil
	case classify(err) == ReasonAmbiguous:
		return result{}, fmt.Errorf("%w (%w)", ErrAmbiguous, err)
	}
	return result{}, fmt.Errorf("remove its keys: %w", err)
}
