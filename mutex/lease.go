package mutex

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ticketTTL is how long the tickets of a process stay after it has died.
const ticketTTL = 10 * time.Second

// leases has the lease of the tickets of a client: one for all its waits, kept alive while they
// last. Locks have none.
type leases struct {
	etcd     *clientv3.Client
	open     context.Context // of etcd's client
	granting chan struct{}   // held by the one who does

	mu      sync.Mutex
	current *lease
}

type lease struct {
	id    clientv3.LeaseID
	lost  context.Context // until it has expired
	lose  context.CancelFunc
	waits atomic.Int32
}

// join returns a lease for a wait, which must leave it; nil if there is none, and none is wanted.
func (s *leases) join(ctx context.Context, wanted bool) (*lease, error) {
	if l := s.live(); l != nil || !wanted {
		return l, nil
	}
	select {
	case s.granting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.granting }()
	if l := s.live(); l != nil || s.open.Err() != nil {
		return l, s.open.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	began := time.Now()
	resp, err := s.etcd.Grant(ctx, int64(ticketTTL/time.Second))
	if err != nil {
		return nil, err
	}
	l := &lease{id: resp.ID}
	l.waits.Add(1)
	l.lost, l.lose = context.WithCancel(s.open)
	go s.keep(l, began)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = l
	return l, nil
}

// live returns the lease for another wait, if it has not expired.
func (s *leases) live() *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.lost.Err() != nil {
		return nil
	}
	s.current.waits.Add(1)
	return s.current
}

// keep renews the lease after half of its time if anyone waits then, and lets it expire otherwise: most waits are shorter.
func (s *leases) keep(l *lease, kept time.Time) {
	defer l.lose()
	for rest(l.lost, time.Until(kept.Add(ticketTTL/2))) == nil && elapsed(kept, time.Now()) < ticketTTL && l.waits.Load() > 0 {
		ctx, cancel := context.WithCancel(l.lost)
		answers, err := s.etcd.KeepAlive(ctx, l.id)
		if err == nil && <-answers != nil {
			kept = time.Now()
		}
		if cancel(); err != nil {
			return
		}
	}
}

func (l *lease) leave() {
	if l != nil {
		l.waits.Add(-1)
	}
}
