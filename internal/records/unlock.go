package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Unlocker removes locks. It is a plain value, safe for concurrent use.
type Unlocker struct {
	Config config.Config
	Client *etcd.Client
	Store  lockstore.Store
	Now    func() time.Time
}

// Request is what a person wants: the lock Name to be removed if it is held under UUID. Who, as
// user@host, and Reason are for the record.
type Request struct{ Name, UUID, Who, Reason string }

// TryRecord returns as refused why etcd would refuse the record of the unlock of a lock, and as err
// why that is not known. etcd checks the right and the space that a put needs also where the
// condition of its transaction never holds. The condition is about a key that the person may read.
func (u Unlocker) TryRecord(ctx context.Context, name string) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.Config.Etcd.RequestTimeout)
	defer cancel()
	prefix := u.Config.AuditKeys()
	never := etcd.Never(u.Store.Layout.Key(name, protocol.FieldUUID.String()))
	_, err = u.Client.Txn(ctx).If(never).Then(clientv3.OpPut(prefix, "")).Commit()
	switch lockstore.Classify(err) {
	case lockstore.ReasonPermission, lockstore.ReasonRejected:
		return u.Client.Explain(err, etcd.Write, prefix), nil
	}
	return nil, err
}

// Unlock removes the lock, and leaves the record if recorded is set. The errors are those of
// lockstore.Store.Unlock; for ErrOtherUUID, now is the lock as it is held now. If the error is
// ErrAmbiguous, the lock may or may not be removed, and the record is there if it is.
func (u Unlocker) Unlock(ctx context.Context, r Request, recorded bool) (removed api.Forced, now lockstore.Record, err error) {
	var left lockstore.Trace
	t := trace{Unlocker: u, request: r}
	if recorded {
		left = t.op
	}
	record, revision, err := u.Store.Unlock(ctx, r.Name, r.UUID, left)
	if err != nil {
		if t.lease != 0 && !errors.Is(err, lockstore.ErrAmbiguous) {
			u.Client.Abandon(ctx, t.lease)
		}
		return api.Forced{}, record, err
	}
	return u.forced(record, revision, r), record, nil
}

func (u Unlocker) forced(removed lockstore.Record, revision int64, r Request) api.Forced {
	now := u.Now().UTC()
	l := api.NewLock(&removed.Lock, now, 0)
	fields, more := removed.Shown()
	return api.Forced{
		At: now, Name: l.Name, UUID: l.UUID, Hostname: l.Hostname, Owner: l.Owner,
		Trigger: verdict.Manual, Revision: revision, MoreFields: more, Who: r.Who, Reason: r.Reason, Fields: fields,
	}
}

// trace makes the record of one unlock, with one lease that ends it after a day.
type trace struct {
	Unlocker
	request Request
	lease   clientv3.LeaseID
}

// op is a lockstore.Trace.
func (t *trace) op(ctx context.Context, removed lockstore.Record) (clientv3.Op, error) {
	if t.lease == 0 {
		ctx, cancel := context.WithTimeout(ctx, t.Config.Etcd.RequestTimeout)
		defer cancel()
		granted, err := t.Client.Grant(ctx, int64(ttl/time.Second))
		if err != nil {
			return clientv3.Op{}, fmt.Errorf("get a lease for the record of the unlock: %w", err)
		}
		t.lease = granted.ID
	}
	r := Record{Prefix: t.Config.Prefix, When: t.Now().UTC(), Forced: removed.Removed()}
	r.Who, r.Reason = t.request.Who, t.request.Reason
	key := keyOf(t.Config.AuditKeys(), r.When, int64(t.lease))
	return clientv3.OpPut(key, r.Encode(), clientv3.WithLease(t.lease)), nil
}
