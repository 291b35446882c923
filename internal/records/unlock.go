package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Unlocker removes locks for the users of a process. It is safe for concurrent use.
type Unlocker struct {
	Config config.Config
	Client *etcd.Client
	Store  lockstore.Store
	Now    func() time.Time
	pace   *rate.Limiter
}

// NewUnlocker returns the one Unlocker of a process.
func NewUnlocker(c config.Config, client *etcd.Client, store lockstore.Store) Unlocker {
	return Unlocker{c, client, store, time.Now, rate.NewLimiter(PerSecond/2, Burst/10)}
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
	case etcd.PermissionDenied, etcd.Rejected:
		return u.Client.Explain(err, etcd.Write, prefix), nil
	}
	return nil, err
}

// Unlock removes a lock for a user, who is user@host, and leaves the record if recorded is set. The
// errors are those of lockstore.Store.Unlock; for ErrOtherUUID, now is the lock as it is held now. If
// the error is ErrAmbiguous, the lock may or may not be removed, and the record is there if it is.
func (u Unlocker) Unlock(ctx context.Context, name string, what api.Unlock, who string, recorded bool) (removed api.Forced, now lockstore.Record, err error) {
	if err := u.pace.Wait(ctx); err != nil {
		return api.Forced{}, lockstore.Record{}, err
	}
	r := &remover{Unlocker: u, who: who, reason: what.Reason, recorded: recorded}
	removed, now, err = r.unlock(ctx, name, lockstore.Held{UUID: what.UUID})
	if r.lease != 0 && err != nil && !errors.Is(err, lockstore.ErrAmbiguous) {
		u.Client.Abandon(ctx, r.lease)
	}
	return removed, now, err
}

// remover removes locks for a user, with one lease for the records of all.
type remover struct {
	Unlocker
	who, reason string
	recorded    bool
	// lease is 0 until the first is removed. Several are only removed concurrently if it is set.
	lease clientv3.LeaseID
}

func (r *remover) unlock(ctx context.Context, name string, held lockstore.Held) (removed api.Forced, now lockstore.Record, err error) {
	trace := r.trace
	if !r.recorded {
		trace = nil
	}
	record, revision, err := r.Store.Unlock(ctx, name, held, trace)
	if err != nil {
		return api.Forced{}, record, err
	}
	removed = record.Removed()
	removed.At, removed.Trigger, removed.Revision = r.Now().UTC(), verdict.Manual, revision
	removed.Fields, removed.MoreFields = record.Shown()
	removed.Who, removed.Reason = r.who, r.reason
	return removed, record, nil
}

// trace is a lockstore.Trace.
func (r *remover) trace(ctx context.Context, removed lockstore.Record) (_ clientv3.Op, err error) {
	if r.lease == 0 {
		if r.lease, err = grant(ctx, r.Client, kept+shared, r.Config.Etcd.RequestTimeout); err != nil {
			return clientv3.Op{}, err
		}
	}
	rec := Record{Prefix: r.Config.Prefix, When: r.Now().UTC(), Forced: removed.Removed()}
	rec.Trigger, rec.Who, rec.Reason = verdict.Manual, r.who, r.reason
	// Only this transaction ends this acquisition: a key that is there already was forged.
	return clientv3.OpPut(keyOf(r.Config.AuditKeys(), &rec.Forced), rec.Encode(), clientv3.WithLease(r.lease)), nil
}

// grant returns a lease for records and questions.
func grant(ctx context.Context, client *etcd.Client, ttl, timeout time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	granted, err := client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, fmt.Errorf("get a lease: %w", err)
	}
	return granted.ID, nil
}
