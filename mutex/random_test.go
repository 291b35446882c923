//go:build go1.25

package mutex_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// TestOneHolderAtATime runs workers on one lock, or on slots, under random faults, next to a daemon without
// grace, and a client that deletes tickets and puts others. No two of them may work at the same time on one lock, nor one
// whose deadline in etcd has passed, and they leave nothing.
// MUTEX_HISTORIES is how many histories there are, 50 unless told otherwise.
func TestOneHolderAtATime(t *testing.T) {
	histories, err := strconv.ParseUint(cmp.Or(os.Getenv("MUTEX_HISTORIES"), "50"), 10, 64)
	require.NoError(t, err)
	var steps atomic.Int64
	for seed := range histories {
		if t.Failed() {
			return // one is enough
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				_, admin := connect()
				works := map[string]chan struct{}{"a": make(chan struct{}, 1), "a/0": make(chan struct{}, 1), "a/1": make(chan struct{}, 1), "a/2": make(chan struct{}, 1)}
				var all errgroup.Group
				all.Go(func() error { return removeExpired(ctx, admin.Client) })
				all.Go(func() error { return forgeTickets(ctx, rand.New(rand.NewPCG(seed, 200)), admin.Client) })
				for id := range uint64(5) {
					client, link := connect(mutex.Patience(20 * time.Second))
					w := worker{client, admin.Client, rand.New(rand.NewPCG(seed, id)), nil, works, &steps}
					if seed%2 == 1 {
						w.opts = append(w.opts, mutex.Slots([]int{2, 2, 2, 1, 3}[(id+seed/2)%5]))
					}
					all.Go(func() error { return disturbAtRandom(ctx, rand.New(rand.NewPCG(seed, 100+id)), link) })
					all.Go(func() (err error) {
						for ctx.Err() == nil && err == nil {
							err = w.work(ctx)
						}
						return err
					})
				}
				err := all.Wait()
				<-time.After(time.Minute) // what was abandoned is released
				require.NoError(t, err)
				left, err := admin.Get(t.Context(), "/mutexes/", clientv3.WithPrefix())
				require.NoError(t, err)
				require.Empty(t, left.Kvs)
			})
		})
	}
	if realEtcd == "" {
		require.Greater(t, steps.Load(), int64(6*histories))
	}
}

type worker struct {
	*mutex.Client
	etcd   *clientv3.Client // without faults
	random *rand.Rand
	opts   []mutex.Option
	works  map[string]chan struct{} // of each lock, which has room for one
	steps  *atomic.Int64
}

// deadline returns an error where the lock of a worker, which believes that it holds it, ends in etcd.
func (w worker) deadline(ctx context.Context, l *mutex.Lock) error {
	resp, err := w.etcd.Get(ctx, "/mutexes/"+l.Name()+"/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	fields := make(map[string]string)
	for _, kv := range resp.Kvs {
		field := strings.TrimPrefix(string(kv.Key), "/mutexes/"+l.Name()+"/")
		if fields[field] = string(kv.Value); kv.ModRevision < l.Token() {
			return fmt.Errorf("%s is left of a holder before", field)
		}
	}
	at, err := protocol.ParseTimestamp([]byte(fields["auto_unlock_at"]))
	if left := time.Until(at.Time()); fields["uuid"] != l.UUID() || err != nil || left <= 0 {
		return fmt.Errorf("at %v %s believes that it holds the lock, and etcd has %v", time.Now(), l.UUID(), fields)
	}
	return nil
}

// work takes the lock and works in steps as long as it may.
func (w worker) work(ctx context.Context) error {
	random := w.random
	opts := slices.Clip(w.opts)
	if random.IntN(2) == 0 {
		opts = append(opts, mutex.KeepAlive(time.Minute))
	}
	waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	lock := w.Lock
	if random.IntN(4) == 0 {
		lock = w.TryLock // without a ticket
	}
	l, err := lock(waiting, "a", opts...)
	if err != nil {
		rest(ctx, 100*time.Millisecond)
		return nil
	}
	skews := []func(*mutex.Lock, time.Duration){nil, (*mutex.Lock).WallBack, (*mutex.Lock).Suspended}[random.IntN(3)] // not both clocks
	held := l.Context(context.WithoutCancel(ctx))
	for range random.IntN(20) {
		if held.Err() != nil || ctx.Err() != nil {
			break
		}
		select {
		case w.works[l.Name()] <- struct{}{}:
		default:
			_ = l.Unlock(ctx)
			return fmt.Errorf("two holders at %v", time.Now())
		}
		select {
		case <-time.After(time.Duration(random.Int64N(int64(3 * time.Second)))):
		case <-held.Done():
		}
		err := w.deadline(context.WithoutCancel(ctx), l)
		<-w.works[l.Name()]
		if err != nil {
			_ = l.Unlock(ctx)
			return err
		}
		w.steps.Add(1)
		if skews != nil && random.IntN(4) == 0 {
			skews(l, 10*time.Second)
		}
		if random.IntN(3) == 0 {
			renewing, cancel := context.WithTimeout(held, 10*time.Second)
			if random.IntN(3) == 0 {
				_ = l.Alive(renewing, mutex.Expect(time.Second), mutex.Patience(time.Duration(2+random.IntN(40))*time.Second))
			} else {
				_ = l.Alive(renewing)
			}
			cancel()
		}
	}
	if random.IntN(4) == 0 && held.Err() == nil {
		<-held.Done() // it hangs
		if err := w.deadline(context.WithoutCancel(ctx), l); err != nil {
			_ = l.Unlock(ctx)
			return err
		}
	}
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if random.IntN(3) > 0 || l.Unlock(short) != nil {
		_ = l.Unlock(context.WithoutCancel(ctx))
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

// forgeTickets deletes tickets and puts others.
func forgeTickets(ctx context.Context, random *rand.Rand, etcd *clientv3.Client) error {
	from, end := protocol.TicketsOf("/unlocker/waiters/mutexes/", "a")
	for ctx.Err() == nil {
		if resp, err := etcd.Get(ctx, from, clientv3.WithRange(end)); err == nil && len(resp.Kvs) > 0 {
			_, _ = etcd.Delete(ctx, string(resp.Kvs[random.IntN(len(resp.Kvs))].Key))
		}
		if random.IntN(3) == 0 {
			_, _ = etcd.Put(ctx, fmt.Sprint(from, random.IntN(100)), "forged")
		}
		rest(ctx, time.Duration(random.Int64N(int64(20*time.Second))))
	}
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
		rest(ctx, 200*time.Millisecond)
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
