package elect

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"
)

// revokeTimeout limits the request that ends an attempt.
const revokeTimeout = 2 * time.Second

// attempt takes part in the election with a new lease until it fails or ctx is done. It returns the
// error of etcd that ended it. In any case it revokes the lease, which also deletes the key and
// works even with NOSPACE. If the lease cannot be revoked, it expires.
func (e *Elector) attempt(ctx context.Context) error {
	granting, cancel := context.WithTimeout(ctx, e.RequestTimeout)
	defer cancel()
	lease, err := e.Client.Grant(granting, int64(e.TTL/time.Second))
	if err != nil {
		return fmt.Errorf("grant lease: %w", err)
	}
	err = e.contend(ctx, lease.ID)
	e.set("", false, err)

	revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	if _, err := e.Client.Revoke(revoking, lease.ID); err != nil {
		e.Logger.Debug("lease not revoked; it will expire", "key", e.Key, "error", err)
	}
	return err
}

// contend campaigns until the session ends, a request fails, or ctx is done. Each of these cancels
// the others: a campaign whose session ended would stay blocked, and later return nil without a key
// (etcd#19597).
func (e *Elector) contend(ctx context.Context, lease clientv3.LeaseID) error {
	g, ctx := errgroup.WithContext(ctx)
	// A canceled campaign resigns with the context of its client. Here that context is done too, so
	// that the call fails at once. The watcher is new because it opens a new stream: etcd refuses
	// watches on a stream whose token has expired. Nobody waits for its end: where etcd refuses a
	// watch in the same instant, Close never returns (etcd's client v3.7.3).
	client := clientv3.NewCtxClient(ctx)
	client.KV, client.Lease, client.Watcher = e.Client.KV, e.Client.Lease, clientv3.NewWatcher(e.Client)
	defer func() { go client.Watcher.Close() }()

	session, err := concurrency.NewSession(client, concurrency.WithLease(lease), concurrency.WithContext(ctx))
	if err != nil {
		return errors.Join(fmt.Errorf("keep lease alive: %w", err), g.Wait())
	}
	election := concurrency.NewElection(session, e.Key)
	campaigned := make(chan struct{})
	g.Go(func() error {
		<-session.Done()
		return errors.New("the session ended: its lease is gone or was not renewed in time")
	})
	g.Go(func() error {
		if err := election.Campaign(ctx, e.Identity); err != nil {
			return fmt.Errorf("campaign: %w", err)
		}
		close(campaigned)
		return nil
	})
	g.Go(func() error { return e.follow(ctx, election, lease, campaigned) })
	return g.Wait()
}

// follow reads the leader, when the campaign returns and three times per TTL, until a read fails or
// until this replica should lead and does not. The campaign alone is not sufficient: it may return
// without a key, and its watch may hang.
func (e *Elector) follow(ctx context.Context, election *concurrency.Election, lease clientv3.LeaseID, campaigned <-chan struct{}) error {
	for won := false; ; {
		select {
		case <-campaigned:
			won, campaigned = true, nil
		case <-time.After(e.TTL / 3):
		case <-ctx.Done():
			return ctx.Err()
		}
		reading, cancel := context.WithTimeout(ctx, e.RequestTimeout)
		resp, err := election.Leader(reading)
		cancel()
		if err != nil {
			return fmt.Errorf("read the election: %w", err)
		}
		leads := clientv3.LeaseID(resp.Kvs[0].Lease) == lease
		if won && !leads {
			return errors.New("the key is gone or is not the oldest")
		}
		won = leads
		e.set(string(resp.Kvs[0].Value), leads, nil)
	}
}
