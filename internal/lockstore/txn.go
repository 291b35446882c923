package lockstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// maxTxnOps is the default limit of etcd on the compares, and on the operations, of a
// transaction. The operations of a nested transaction are added to those of the level above.
// If a server has a lower limit, batches are halved.
const maxTxnOps = 128

// maxSpans is the maximum number of spans of a deletion, which has two other compares, and is nested.
const maxSpans = maxTxnOps - 3

// span is a range of keys that all belong to one lock. end is exclusive, or empty for the
// single key from.
type span struct{ from, end string }

// expired is the deletion of a lock that is due. It compares the uuid (or that there is none), the
// deadline, and the newest revision of the keys (S1). It has no put, and no other branch (S5).
func (st Store) expired(r *Record) clientv3.Op {
	uuid := st.Layout.Key(r.Name, protocol.FieldUUID.String())
	if r.Token == 0 {
		return r.deletion(nil, clientv3.Compare(clientv3.Version(uuid), "=", 0))
	}
	deadline := st.Layout.Key(r.Name, protocol.FieldAutoUnlockAt.String())
	return r.deletion(nil,
		clientv3.Compare(clientv3.Value(uuid), "=", r.UUID()),
		clientv3.Compare(clientv3.Value(deadline), "=", r.AutoUnlockText()))
}

// manual is the deletion for a manual unlock. It compares the given uuid, and the newest
// revision of the keys, so that no key is deleted that was not read. It may have a put, for which
// there is room, as there is one compare more than deletes.
func (st Store) manual(r *Record, uuid string, put []clientv3.Op) clientv3.Op {
	return r.deletion(put, clientv3.Compare(clientv3.Value(st.Layout.Key(r.Name, protocol.FieldUUID.String())), "=", uuid))
}

// deletion is the transaction that deletes the spans of the record, and has other operations after
// that, if the compares hold and no key in the spans is newer than the record.
func (r *Record) deletion(others []clientv3.Op, compares ...clientv3.Cmp) clientv3.Op {
	var ops []clientv3.Op
	for _, s := range r.spans {
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(s.from), "<", r.Revision+1).WithRange(s.end))
		ops = append(ops, clientv3.OpDelete(s.from, clientv3.WithRange(s.end)))
	}
	return clientv3.OpTxn(compares, append(ops, others...), nil)
}

// maxKeys is the maximum number of keys of several locks in one transaction: etcd does nothing else while it deletes them.
const maxKeys = 1000

// Fits reports whether one transaction can delete the records, and not for too long if there are several.
func Fits(records ...Record) bool {
	costliest, keys := 0, int32(0)
	for i := range records {
		if len(records[i].spans) == 0 {
			return false
		}
		costliest = max(costliest, len(records[i].spans)+2) // its compares, which are at most two more than its deletes
		keys += records[i].Keys
	}
	return len(records)+costliest <= maxTxnOps && (keys <= maxKeys || len(records) == 1)
}

// Terms are under which Delete may be carried out.
type Terms struct {
	// Open is asked in the instant in which the transaction goes on a connection, once. It may go there once.
	Open func() bool
	// Pauses is the revision of the newest pause that the verdicts knew. With a newer one nothing is deleted.
	Pauses int64
}

// Delete deletes each of the records if the lock has not changed since it was read. The records
// must fit into one transaction (see Fits), of which it returns the revision. deleted are the
// numbers of deleted keys, in the order of the records: 0 if the lock was modified or released
// concurrently. The error is ErrWithdrawn if the terms do not hold. Use Classify for the meaning of others.
func (st Store) Delete(ctx context.Context, terms Terms, records ...Record) (deleted []int64, revision int64, err error) {
	deletions := make([]clientv3.Op, len(records))
	for i := range records {
		deletions[i] = st.expired(&records[i])
	}
	var unpaused []clientv3.Cmp
	if st.Pauses != "" {
		unpaused = append(unpaused, clientv3.Compare(clientv3.ModRevision(st.Pauses), "<", terms.Pauses+1).WithPrefix())
	}
	oldest := slices.MinFunc(records, func(a, b Record) int { return a.read.Compare(b.read) })
	departure := &etcd.Departure{Open: terms.Open, Read: oldest.read}
	resp, err := st.commit(ctx, departure, clientv3.OpTxn(unpaused, deletions, nil))
	switch {
	case err != nil:
		return nil, 0, err
	case !resp.Succeeded:
		return nil, 0, ErrWithdrawn
	}
	for _, r := range resp.Responses { // each compares the state before the transaction
		deleted = append(deleted, deletedBy((*clientv3.TxnResponse)(r.GetResponseTxn())))
	}
	return deleted, resp.Header.Revision, nil
}

func (st Store) commit(ctx context.Context, departure *etcd.Departure, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(departure.With(ctx), st.RequestTimeout)
	defer cancel()
	compares, ops, _ := txn.Txn()
	resp, err := st.KV.Txn(ctx).If(compares...).Then(ops...).Commit()
	switch {
	case departure.Refused():
		return nil, ErrWithdrawn
	case err != nil:
		return nil, st.explain(err)
	}
	return resp, nil
}

func deletedBy(resp *clientv3.TxnResponse) (keys int64) {
	for _, op := range resp.Responses {
		keys += op.GetResponseDeleteRange().GetDeleted()
	}
	return keys
}

// Errors of ReadOne, Unlock and Delete.
var (
	ErrNoLock    = errors.New("no such lock")
	ErrOtherUUID = errors.New("the lock is held under another uuid")
	ErrRenewed   = errors.New("the lock was renewed, or modified otherwise, since it was selected")
	ErrNoUUID    = errors.New("there are keys, but no uuid: nobody holds the lock")
	ErrUnsteady  = errors.New("the lock was modified each time between reading and removing it")
	ErrTooLarge  = errors.New("the lock has more keys, or more names nested in it, than one transaction can remove")
	ErrWithdrawn = errors.New("not removed: in the same moment a hold or a pause began, or the connection to etcd was lost")
	ErrAmbiguous = errors.New("no answer from etcd: the lock may have been removed; asking again is harmless")
)

// Reason is why a request failed: the label of unlocker_forced_unlock_failures_total.
type Reason = etcd.Reason

// The reasons that package etcd does not have, and ReasonTooLarge, which is also that of a lock that no transaction can remove.
const (
	ReasonAmbiguous  Reason = "ambiguous"  // no answer: the lock may have been removed
	ReasonUnreadable Reason = "unreadable" // no answer to the read: nothing was sent to remove it
	ReasonUnlogged   Reason = "unlogged"   // the record could not be written to the log: nothing was sent
	ReasonTooLarge          = etcd.TooLarge
)

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{ReasonAmbiguous, ReasonUnreadable, etcd.TooLarge, etcd.PermissionDenied, etcd.Auth,
		etcd.NoLeader, etcd.Busy, etcd.Rejected, ReasonUnlogged}
}

// Classify returns why a request failed. Every error that is not known to be a refusal is
// ReasonAmbiguous: the transaction may have been executed.
func Classify(err error) Reason {
	switch r := etcd.Classify(err); r {
	case etcd.TooLarge, etcd.PermissionDenied, etcd.Auth, etcd.NoLeader, etcd.Busy, etcd.Rejected:
		return r
	case etcd.NoSpace:
		return etcd.Rejected
	}
	return ReasonAmbiguous
}

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
	i := slices.IndexFunc(r.fields, func(f field) bool { return f.name == protocol.FieldUUID.String() })
	switch {
	case i < 0:
		return ErrNoUUID
	case string(r.fields[i].value) != uuid:
		return ErrOtherUUID
	}
	return nil
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
	departure := &etcd.Departure{Open: func() bool { return true }, Read: rec.read}
	resp, err := st.commit(ctx, departure, st.manual(&rec, uuid, put))
	switch {
	case err == nil:
		return deletedBy(resp), resp.Header.Revision, nil
	case errors.Is(err, ErrWithdrawn):
		return 0, 0, nil // it is read again
	case Classify(err) == ReasonAmbiguous:
		return 0, 0, fmt.Errorf("%w (%w)", ErrAmbiguous, err)
	}
	return 0, 0, fmt.Errorf("remove its keys: %w", err)
}
