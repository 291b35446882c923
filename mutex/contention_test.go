//go:build go1.25

package mutex_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/mutex"
)

// counted returns a client that counts its requests.
func counted(w world, requests *atomic.Int64, opts ...mutex.Option) *mutex.Client {
	return w.over(countedEtcd(w, requests), opts...)
}

func countedEtcd(w world, requests *atomic.Int64) *clientv3.Client {
	return w.connect(func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				requests.Add(1)
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
}

// TestStarvation lets 100 waiters take a lock three times each: few requests for each
// hand-off, and none waits much longer than the others.
func TestStarvation(t *testing.T) {
	const waiters, rounds = 100, 3
	on(t, func(t *testing.T, w world) {
		var txns atomic.Int64
		first, err := counted(w, new(atomic.Int64)).Lock(t.Context(), "a")
		require.NoError(t, err)
		var waits [waiters][]time.Duration
		var waiting errgroup.Group
		for i := range waiters {
			c := counted(w, &txns)
			waiting.Go(func() error {
				for range rounds {
					began := time.Now()
					l, err := c.Lock(t.Context(), "a")
					if err != nil {
						return err
					}
					waits[i] = append(waits[i], time.Since(began))
					if err := l.Unlock(t.Context()); err != nil {
						return err
					}
				}
				return nil
			})
		}
		eventually(t, func() bool { return txns.Load() >= waiters })
		before, began := txns.Load(), time.Now()
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, waiting.Wait())
		handoff := time.Since(began) / (waiters * rounds)
		all := slices.Sorted(slices.Values(slices.Concat(waits[:]...)))
		requests := float64(txns.Load()-before) / (waiters * rounds)
		ratio := float64(all[len(all)-1]) / float64(all[len(all)/2])
		require.Less(t, requests, 7.0)
		require.Less(t, ratio, 4.0)
		t.Logf("%v and %.1f requests for each hand-off; longest wait %v, %.1f times the median", handoff, requests, all[len(all)-1], ratio)
	})
}

// TestTurns locks in a loop without a pause. A waiter gets the lock all the same.
func TestTurns(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		greedy := w.client()
		rounds, began := 0, make(chan struct{})
		var all errgroup.Group
		all.Go(func() error {
			for ctx.Err() == nil {
				if err := greedy.WithLock(t.Context(), "a", func(context.Context) error {
					if rounds++; rounds == 1 {
						close(began)
					}
					<-time.After(30 * time.Millisecond)
					return nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
		c := w.client()
		<-began
		for range 5 {
			require.NoError(t, c.WithLock(ctx, "a", func(context.Context) error {
				<-time.After(30 * time.Millisecond)
				return nil
			}))
		}
		cancel()
		require.NoError(t, all.Wait())
		t.Logf("%d rounds of the greedy for 5 of the other", rounds)
		require.Less(t, rounds, 100)
	})
}

// TestDeadlock takes two locks in both orders. A waiter that waits for too long gives back what it has;
// the waits are random, so that the two do not repeat the same for ever.
func TestDeadlock(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		swap := func(c *mutex.Client, first, second string) error {
			for {
				err := c.WithLock(t.Context(), first, func(ctx context.Context) error {
					<-time.After(20 * time.Millisecond) // both have their first
					return c.WithLock(ctx, second, func(context.Context) error { return nil }, mutex.Wait(100*time.Millisecond+rand.N(time.Second)))
				})
				if !errors.Is(err, context.DeadlineExceeded) { // also if etcd has not answered in time
					return err
				}
			}
		}
		a, b := w.client(), w.client()
		var all errgroup.Group
		all.Go(func() error { return swap(a, "a", "b") })
		all.Go(func() error { return swap(b, "b", "a") })
		require.NoError(t, all.Wait())
		// What etcd executes late of an attempt is released in the background.
		eventually(t, func() bool { return len(w.fields()) == 0 })
	})
}
