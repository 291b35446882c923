package mutex

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ticketTTL is how long the tickets of a process stay after it has died.
const ticketTTL = 10 * time.Second

// leases has the lease of the tickets of a client: one for all its waits, kept alive while one of
// them lasts. Locks have none.
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
	stop  context.CancelFunc // of keeping it
	waits int
	left  time.Time // by the last of them
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
	l := &lease{left: time.Now()}
	resp, err := s.etcd.Grant(ctx, int64(ticketTTL/time.Second))
	if err != nil {
		return nil, err
	}
	l.id = resp.ID
	l.lost, l.lose = context.WithCancel(s.open)
	s.mu.Lock()
	s.current = l
	s.mu.Unlock()
	return s.live(), nil
}

// live returns the lease if it can have another wait.
func (s *leases) live() *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.current
	switch {
	case l == nil || l.lost.Err() != nil:
		return nil
	case l.waits == 0 && elapsed(l.left, time.Now()) > ticketTTL/2:
		l.lose()
		return nil
	case l.waits == 0:
		ctx, stop := context.WithCancel(l.lost)
		l.stop = stop
		go s.keep(ctx, l)
	}
	l.waits++
	return l
}

func (s *leases) keep(ctx context.Context, l *lease) {
	if kept, err := s.etcd.KeepAlive(ctx, l.id); err == nil {
		for range kept {
			continue
		}
	}
	if ctx.Err() == nil {
		l.lose()
	}
}

func (s *leases) leave(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l == nil {
		return
	}
	if l.waits--; l.waits == 0 {
		l.stop()
		l.left = time.Now()
	}
}
