package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/mutex"
)

// locker locks, and returns what unlocks. It has connections of its own, as a process has.
type locker func(context.Context) (unlock func(context.Context) error, err error)

func newMutex(s server) locker {
	c, err := mutex.New(s.etcd())
	require.NoError(s.b, err)
	return func(ctx context.Context) (func(context.Context) error, error) {
		l, err := c.Lock(ctx, "bench")
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}
}

// newConcurrency locks with the mutex of etcd's client and one session.
func newConcurrency(s server) locker {
	session, err := concurrency.NewSession(s.etcd())
	require.NoError(s.b, err)
	s.b.Cleanup(func() { _ = session.Close() }) // at the end its lease is of no matter
	m := concurrency.NewMutex(session, "/concurrency/bench")
	return func(ctx context.Context) (func(context.Context) error, error) { return m.Unlock, m.Lock(ctx) }
}

// newConcurrencySessions takes a session for each lock.
func newConcurrencySessions(s server) locker {
	client := s.etcd()
	return func(ctx context.Context) (func(context.Context) error, error) {
		session, err := concurrency.NewSession(client)
		if err != nil {
			return nil, err
		}
		m := concurrency.NewMutex(session, "/concurrency/bench")
		return func(ctx context.Context) error {
			if err := m.Unlock(ctx); err != nil {
				return err
			}
			return session.Close()
		}, m.Lock(ctx)
	}
}

// newRedsync locks with redsync on one Redis. It tries until it has the lock.
func newRedsync(s server) locker {
	pool := &redis.Pool{MaxIdle: 2, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.addr)
	}}
	s.b.Cleanup(func() { require.NoError(s.b, pool.Close()) })
	m := redsync.New(redigo.NewPool(pool)).NewMutex("bench", redsync.WithExpiry(2*time.Minute), redsync.WithTries(1<<30))
	return func(ctx context.Context) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			_, err := m.UnlockContext(ctx)
			return err
		}, m.LockContext(ctx)
	}
}

// newBare sends two transactions with the keys and the values of a lock of package mutex.
func newBare(s server) locker {
	client, b := s.etcd(), s.b
	c, err := mutex.New(client)
	require.NoError(b, err)
	l, err := c.Lock(b.Context(), "bench")
	require.NoError(b, err)
	resp, err := client.Get(b.Context(), prefix+"bench/", clientv3.WithPrefix())
	require.NoError(b, err)
	require.NoError(b, l.Unlock(b.Context()))
	var puts, deletes []clientv3.Op
	for _, kv := range resp.Kvs {
		puts = append(puts, clientv3.OpPut(string(kv.Key), string(kv.Value)))
		deletes = append(deletes, clientv3.OpDelete(string(kv.Key)))
	}
	uuid := prefix + "bench/uuid"
	return func(ctx context.Context) (func(context.Context) error, error) {
		_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version(uuid), "=", 0)).Then(puts...).Commit()
		return func(ctx context.Context) error {
			_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Value(uuid), "=", l.UUID())).Then(deletes...).Commit()
			return err
		}, err
	}
}

// BenchmarkUncontended locks and unlocks with package mutex, with two transactions of the
// same keys, with etcd's own mutex, and with redsync. All take turns, so that the load of
// the machine is the same for each.
func BenchmarkUncontended(b *testing.B) {
	const rounds = 1_000
	for range b.N {
		etcd := startEtcd(b)
		contenders := []struct {
			name string
			lock locker
		}{
			{"mutex", newMutex(etcd)},
			{"bare", newBare(etcd)},
			{"concurrency", newConcurrency(etcd)},
			{"concurrency-new-session", newConcurrencySessions(etcd)},
			{"redsync-fsync", newRedsync(startRedis(b, true))},
			{"redsync-no-fsync", newRedsync(startRedis(b, false))},
		}
		took := make([][]time.Duration, len(contenders))
		for range rounds {
			for _, i := range rand.Perm(len(contenders)) { // who comes after an idle etcd is slower
				start := time.Now()
				unlock, err := contenders[i].lock(b.Context())
				require.NoError(b, err)
				require.NoError(b, unlock(b.Context()))
				took[i] = append(took[i], time.Since(start))
			}
		}
		mutex := quantile(took[0], .5)
		for i, c := range contenders {
			b.Run(c.name, func(b *testing.B) {
				median := quantile(took[i], .5)
				b.ReportMetric(milliseconds(median), "median-ms")
				b.ReportMetric(milliseconds(quantile(took[i], .99)), "p99-ms")
				b.ReportMetric(float64(mutex)/float64(median), "mutex-x")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkTryLockAll takes 1,000 locks with one call, and the same one after the other.
func BenchmarkTryLockAll(b *testing.B) {
	const n = 1_000
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("bench/%d", i)
	}
	for range b.N {
		etcd := startEtcd(b)
		c, err := mutex.New(etcd.etcd())
		require.NoError(b, err)
		txns, start := etcd.etcdTxns(), time.Now()
		locks, held, err := c.TryLockAll(b.Context(), names)
		all := time.Since(start)
		require.NoError(b, err)
		require.Empty(b, held)
		b.ReportMetric(all.Seconds()*1000, "lock-ms")
		b.ReportMetric(etcd.etcdTxns()-txns, "lock-txns")
		txns, start = etcd.etcdTxns(), time.Now()
		require.NoError(b, c.UnlockAll(b.Context(), locks...))
		b.ReportMetric(time.Since(start).Seconds()*1000, "unlock-ms")
		b.ReportMetric(etcd.etcdTxns()-txns, "unlock-txns")
		start = time.Now()
		for i, name := range names {
			locks[i], err = c.TryLock(b.Context(), name)
			require.NoError(b, err)
		}
		b.ReportMetric(float64(time.Since(start))/float64(all), "x-one-by-one")
		require.NoError(b, c.UnlockAll(b.Context(), locks...))
		b.ReportMetric(0, "ns/op")
	}
}
