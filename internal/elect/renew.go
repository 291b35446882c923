package elect

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	errExpired     = errors.New("lease is gone")
	errUnconfirmed = errors.New("renewals of the lease stay unanswered")
)

// renew keeps the lease alive until ctx is done, the lease is gone, or no renewal
// was answered for so long that it may be.
func (t *term) renew(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(time.Until(t.until()), func() { cancel(errUnconfirmed) })
	defer watchdog.Stop()
	for {
		err := t.renewals(ctx, watchdog)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errExpired) {
			return err
		}
		t.Logger.Debug("renewals interrupted, trying again", "key", t.key, "error", err)
		_ = pause(ctx, t.TTL/20)
	}
}

// renewals renews the lease three times in a TTL on one stream, until the stream
// fails. A new stream logs in anew. It is not clientv3's KeepAlive, which does not
// tell when it sent what was answered: an answer that was held up for long would
// prolong a lease that ran out meanwhile.
func (t *term) renewals(ctx context.Context, watchdog *time.Timer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := clientv3.RetryLeaseClient(t.Client).LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	for {
		sent := time.Now()
		if err := renewOnce(stream, t.lease); err != nil {
			return err
		}
		t.confirmed.Store(&sent)
		watchdog.Reset(time.Until(t.until()))
		if err := pause(ctx, t.TTL/3); err != nil {
			return err
		}
	}
}

func renewOnce(stream etcdserverpb.Lease_LeaseKeepAliveClient, lease clientv3.LeaseID) error {
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(lease)}); err != nil {
		return err
	}
	resp, err := stream.Recv()
	if err != nil {
		return err
	}
	if resp.TTL <= 0 {
		return errExpired
	}
	return nil
}
