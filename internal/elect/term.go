package elect

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// resignTimeout bounds how long the end of a term waits for etcd.
const resignTimeout = 2 * time.Second

// term is one lease and the key that hangs on it.
type term struct {
	*Elector
	ctx   context.Context
	lease clientv3.LeaseID
	key   string
	// rev is the create revision of the key.
	rev int64
	// confirmed is when the last renewal that etcd answered was sent.
	confirmed atomic.Pointer[time.Time]
}

// term takes part in the election with a new lease until that fails or ctx is done.
func (e *Elector) term(ctx context.Context) error {
	t, err := e.grant(ctx)
	if err != nil {
		return err
	}
	g, within := errgroup.WithContext(ctx)
	t.ctx = within
	g.Go(func() error { return t.renew(within) })
	g.Go(func() error { return t.campaign(within) })
	err = g.Wait()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	e.abdicate(t, err)
	t.resign(ctx)
	return err
}

// grant asks for a lease.
func (e *Elector) grant(ctx context.Context) (*term, error) {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.RequestTimeout)
	defer cancel()
	resp, err := e.Client.Grant(ctx, int64(e.TTL/time.Second))
	if err != nil {
		return nil, fmt.Errorf("grant lease: %w", err)
	}
	t := &term{Elector: e, lease: resp.ID, key: fmt.Sprintf("%s%x", e.prefix, resp.ID)}
	t.confirmed.Store(&sent)
	return t, nil
}

// valid tells whether the term's lease is certain to be alive at now.
func (t *term) valid(now time.Time) bool {
	return t.ctx.Err() == nil && now.Before(t.until())
}

// until is when we stop to trust the lease: a tenth of the TTL before etcd may end
// it. Our clock and etcd's may run at speeds that differ by so much.
func (t *term) until() time.Time { return t.confirmed.Load().Add(t.TTL - t.TTL/10) }

// resign gives the key up, so that nobody waits for the lease to run out. It does
// what it can in a bounded time, when ctx is done too: a revocation works without
// space, and where it fails the lease runs out.
func (t *term) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	if _, err := t.Client.Revoke(ctx, t.lease); err != nil {
		t.Logger.Debug("lease not revoked, it will run out", "key", t.key, "error", err)
	}
}
