//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// TestOneHolderAtATime runs workers on one lock under random faults, next to a daemon without
// grace. No two of them may work at the same time.
func TestOneHolderAtATime(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				_, admin := connect()
				works := make(chan struct{}, 1)
				var all errgroup.Group
				var done [5]int
				all.Go(func() error { return removeExpired(ctx, admin.Client) })
				for id := range done {
					client, link := connect(mutex.Patience(20 * time.Second))
					random := rand.New(rand.NewPCG(seed, uint64(id)))
					all.Go(func() error { return disturbAtRandom(ctx, rand.New(rand.NewPCG(seed, uint64(100+id))), link) })
					all.Go(func() (err error) {
						for ctx.Err() == nil && err == nil {
							err = work(ctx, random, client, works, &done[id])
						}
						return err
					})
				}
				err := all.Wait()
				<-time.After(time.Minute) // what was abandoned is released
				require.NoError(t, err)
				steps := 0
				for _, n := range done {
					steps += n
				}
				require.Greater(t, steps, 20)
			})
		})
	}
}

// work takes the lock and works in steps as long as it may. works has room for one.
func work(ctx context.Context, random *rand.Rand, c *mutex.Client, works chan struct{}, done *int) error {
	var opts []mutex.Option
	if random.IntN(2) == 0 {
		opts = append(opts, mutex.KeepAlive(time.Minute))
	}
	waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	l, err := c.Lock(waiting, "a", opts...)
	if err != nil {
		return nil
	}
	held := l.Context(ctx)
	for range random.IntN(20) {
		if held.Err() != nil {
			break
		}
		select {
		case works <- struct{}{}:
		default:
			_ = l.Unlock(ctx)
			return fmt.Errorf("two holders at %v", time.Now())
		}
		select {
		case <-time.After(rand.N(3 * time.Second)):
		case <-held.Done():
		}
		<-works
		if *done++; random.IntN(3) == 0 {
			renewing, cancel := context.WithTimeout(held, 10*time.Second)
			if random.IntN(3) == 0 {
				_ = l.Alive(renewing, mutex.Expect(time.Second), mutex.Patience(time.Duration(2+random.IntN(40))*time.Second))
			} else {
				_ = l.Alive(renewing)
			}
			cancel()
		}
	}
	if random.IntN(4) == 0 {
		<-held.Done() // it hangs
	}
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if random.IntN(3) > 0 || l.Unlock(short) != nil {
		_ = l.Unlock(ctx)
	}
	return nil
}

// disturbAtRandom changes the faults of a client.
func disturbAtRandom(ctx context.Context, random *rand.Rand, l *memetcd.Link) error {
	for ctx.Err() == nil {
		faults := []memetcd.Faults{{}, {}, {}, {Request: 10 * time.Millisecond}, {Refuse: true}, memetcd.Unreachable(), {HoldAnswers: true}, {HoldRequests: true},
			{NoLeader: true}, {Lag: 5 * time.Second}, {Request: time.Duration(random.Int64N(int64(8 * time.Second)))}, {Answer: time.Duration(random.Int64N(int64(8 * time.Second)))}}
		l.Set(faults[random.IntN(len(faults))])
		if random.IntN(5) == 0 {
			l.Break()
		}
		select {
		case <-time.After(time.Duration(random.Int64N(int64(20 * time.Second)))):
		case <-ctx.Done():
		}
	}
	l.Set(memetcd.Faults{})
	return nil
}

// removeExpired is a daemon that removes locks at their deadline.
func removeExpired(ctx context.Context, etcd *clientv3.Client) error {
	for ctx.Err() == nil {
		resp, err := etcd.Get(ctx, "/mutexes/", clientv3.WithPrefix())
		if err != nil {
			resp = &clientv3.GetResponse{} // ctx has ended
		}
		for _, kv := range resp.Kvs {
			name, is := strings.CutSuffix(string(kv.Key), "auto_unlock_at")
			at, err := protocol.ParseTimestamp(kv.Value)
			if !is || err != nil || time.Now().Before(at.Time()) {
				continue
			}
			_, _ = etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)).
				Then(clientv3.OpDelete(name, clientv3.WithPrefix())).Commit()
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}
