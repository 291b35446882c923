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

// Unlock removes a lock for a user, who is user@host, and leaves the record if recorded is set. The
// errors are those of lockstore.Store.Unlock; for ErrOtherUUID, now is the lock as it is held now. If
// the error is ErrAmbiguous, the lock may or may not be removed, and the record is there if it is.
func (u Unlocker) Unlock(ctx context.Context, name string, what api.Unlock, who string, recorded bool) (removed api.Forced, now lockstore.Record, err error) {
	var trace lockstore.Trace
	var lease clientv3.LeaseID // one for all attempts
	if recorded {
		trace = func(ctx context.Context, removed lockstore.Record) (_ clientv3.Op, err error) {
			if lease == 0 {
				if lease, err = grant(ctx, u.Client, kept+shared, u.Config.Etcd.RequestTimeout); err != nil {
					return clientv3.Op{}, err
				}
			}
			r := Record{Prefix: u.Config.Prefix, When: u.Now().UTC(), Forced: removed.Removed()}
			r.Trigger, r.Who, r.Reason = verdict.Manual, who, what.Reason
			// Only this transaction ends this acquisition: a key that is there already was forged.
			return clientv3.OpPut(keyOf(u.Config.AuditKeys(), &r.Forced), r.Encode(), clientv3.WithLease(lease)), nil
		}
	}
	record, revision, err := u.Store.Unlock(ctx, name, what.UUID, trace)
	if err != nil {
		if lease != 0 && !errors.Is(err, lockstore.ErrAmbiguous) {
			u.Client.Abandon(ctx, lease)
		}
		return api.Forced{}, record, err
	}
	removed = record.Removed()
	removed.At, removed.Trigger, removed.Revision = u.Now().UTC(), verdict.Manual, revision
	removed.Fields, removed.MoreFields = record.Shown()
	removed.Who, removed.Reason = who, what.Reason
	return removed, record, nil
}

// grant returns a lease for records.
func grant(ctx context.Context, client *etcd.Client, ttl, timeout time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	granted, err := client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, fmt.Errorf("get a lease for the record of a removal: %w", err)
	}
	return granted.ID, nil
}
