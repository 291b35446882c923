package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// BenchmarkPeers measures unlocker beside what others use for the same, in one run. etcd, Redis, Consul and the daemon
// run in processes of their own. make bench-peers makes tables and plots of it.
func BenchmarkPeers(b *testing.B) {
	binary := buildDaemon(b)
	b.Run("due", func(b *testing.B) { peersDue(b, binary) })
	for _, n := range sizes(b, 20_000, 100_000) {
		b.Run(fmt.Sprintf("removal-%d", n), func(b *testing.B) { peersRemoval(b, binary, n) })
	}
	for _, n := range sizes(b, 1_000, 10_000, 100_000, 1_000_000) {
		b.Run(fmt.Sprintf("growth/%d", n), func(b *testing.B) { growth(b, binary, n) })
	}
}

// sizes returns those up to the environment variable BENCH_LOCKS (100,000), or that itself if all are above it.
func sizes(b *testing.B, all ...int) []int {
	limit := 100_000
	if text := os.Getenv("BENCH_LOCKS"); text != "" {
		var err error
		limit, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	if limit < all[0] {
		return []int{limit}
	}
	return slices.DeleteFunc(all, func(n int) bool { return n > limit })
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// dueRounds is the number of locks that peersDue measures each way.
const dueRounds = 50

// peersDue measures how long after a lock is due a watcher sees that it is gone, on an idle system.
func peersDue(b *testing.B, binary string) {
	etcd := startEtcd(b)
	client := etcd.etcd()
	d, _ := launch(b, binary, etcd.addr)
	d.awaitNoHold()
	on := func(once func(*testing.B, *clientv3.Client, string) time.Duration) func(*testing.B) func(int) time.Duration {
		return func(b *testing.B) func(int) time.Duration {
			return func(i int) time.Duration { return once(b, client, name(i)) }
		}
	}
	var bare float64
	for _, way := range []struct {
		name string
		// prepare returns what measures one lock after the other.
		prepare func(*testing.B) func(i int) time.Duration
	}{
		{"bare-transaction", on(bareDelete)},
		{"unlocker", on(func(b *testing.B, client *clientv3.Client, lock string) time.Duration {
			return dueDelete(b, client, lock, time.Now().Add(idleTime))
		})},
		{"etcd-lease", on(leaseDelete)},
		{"redis-expiry", redisExpiry},
		{"consul-session", consulSessions},
	} {
		b.Run(way.name, func(b *testing.B) {
			once := way.prepare(b)
			var took []time.Duration
			for i := range dueRounds {
				took = append(took, once(i))
			}
			median := milliseconds(quantile(took, .5))
			if bare == 0 {
				bare = median
			}
			b.ReportMetric(median, "median-ms")
			b.ReportMetric(milliseconds(quantile(took, .99)), "p99-ms")
			b.ReportMetric(median/bare, "x-bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// leaseDelete returns how long after the end of a lease with the shortest TTL that etcd grants its key is gone.
func leaseDelete(b *testing.B, client *clientv3.Client, lock string) time.Duration {
	finish := deletions(b, client, 1)
	lease, err := client.Grant(b.Context(), 1)
	require.NoError(b, err)
	due := time.Now().Add(time.Duration(lease.TTL) * time.Second)
	_, err = client.Txn(b.Context()).Then(lockOps(lock, due, due, clientv3.WithLease(lease.ID))...).Commit()
	require.NoError(b, err)
	gone, _ := finish()
	return gone.Sub(due)
}

// redisExpiry measures how long after the end of a key's time to live Redis publishes that it has expired.
func redisExpiry(b *testing.B) func(int) time.Duration {
	s := startRedis(b, true)
	conn, err := redis.Dial("tcp", s.addr)
	require.NoError(b, err)
	events, err := redis.Dial("tcp", s.addr)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()); require.NoError(b, events.Close()) })
	_, err = conn.Do("CONFIG", "SET", "notify-keyspace-events", "Ex")
	require.NoError(b, err)
	subscription := redis.PubSubConn{Conn: events}
	require.NoError(b, subscription.Subscribe("__keyevent@0__:expired"))
	require.IsType(b, redis.Subscription{}, subscription.Receive())
	return func(i int) time.Duration {
		const ttl = 500 * time.Millisecond
		_, err := conn.Do("SET", name(i), "x", "PX", ttl.Milliseconds())
		require.NoError(b, err)
		due := time.Now().Add(ttl)
		require.IsType(b, redis.Message{}, subscription.Receive())
		return time.Since(due)
	}
}

// consulSessions measures how long after the shortest TTL of a session that Consul grants by default its key is gone. As
// that takes long, all sessions begin before the first is invalidated, one after the other.
func consulSessions(b *testing.B) func(int) time.Duration {
	const ttl = 10 * time.Second
	s := startConsul(b)
	var due []time.Time
	create := func(i int) bool {
		status, _, session := s.consul(http.MethodPut, "session/create",
			fmt.Sprintf(`{"TTL": %q, "Behavior": "delete", "LockDelay": "0s", "NodeChecks": []}`, ttl))
		if status != http.StatusOK {
			return false
		}
		due = append(due, time.Now().Add(ttl))
		var created struct{ ID string }
		require.NoError(b, json.Unmarshal([]byte(session), &created))
		_, _, acquired := s.consul(http.MethodPut, "kv/"+name(i)+"?acquire="+created.ID, "x")
		require.Equal(b, "true", acquired)
		return true
	}
	require.Eventually(b, func() bool { return create(0) }, time.Minute, idleTime, "Consul has no leader")
	for i := 1; i < dueRounds; i++ {
		<-time.After(idleTime)
		require.True(b, create(i))
	}
	require.Positive(b, time.Until(due[0].Add(ttl)), "the sessions were not ready in time")
	return func(i int) time.Duration {
		status, index, text := s.consul(http.MethodGet, "kv/"+name(i), "")
		for ; status == http.StatusOK; status, index, text = s.consul(http.MethodGet, "kv/"+name(i)+"?index="+index, "") {
		} // each waits until the key is written or deleted, but not forever
		require.Equal(b, http.StatusNotFound, status, text)
		return time.Since(due[i])
	}
}

// peersRemoval removes n locks of five keys that are due at once, each way on an etcd of its own, while another client
// locks and unlocks.
func peersRemoval(b *testing.B, binary string, n int) {
	daemon := func(batch, inFlight int) func(*testing.B, server, *etcdtest.Etcd, time.Time) int {
		return func(b *testing.B, s server, e *etcdtest.Etcd, due time.Time) int {
			d, _ := launchWith(b, binary, []string{"--reaper-batch-size", strconv.Itoa(batch), "--reaper-concurrency", strconv.Itoa(inFlight)}, s.addr)
			d.awaitNoHold()
			deadline := due.Add(-config.Default().Reaper.Grace)
			putLocks(e, n, deadline, deadline)
			return d.pid
		}
	}
	naive := func(inFlight int) func(*testing.B, server, *etcdtest.Etcd, time.Time) int {
		return func(b *testing.B, _ server, e *etcdtest.Etcd, due time.Time) int {
			putLocks(e, n, due, due)
			go naiveReaper(b, e.Client, n, inFlight, due)
			return os.Getpid()
		}
	}
	var bare float64
	for _, way := range []struct {
		name string
		// prepare has the locks removed when they are due, and returns the process that does it: 0 for etcd itself.
		prepare func(*testing.B, server, *etcdtest.Etcd, time.Time) int
	}{
		{"bare-range-delete", func(b *testing.B, _ server, e *etcdtest.Etcd, due time.Time) int {
			putLocks(e, n, due, due)
			time.AfterFunc(time.Until(due), func() { _, _ = e.Client.Delete(b.Context(), prefix+"bench/", clientv3.WithPrefix()) })
			return os.Getpid()
		}},
		{"unlocker-default", daemon(config.Default().Reaper.BatchSize, config.Default().Reaper.Concurrency)},
		{"unlocker-fast", daemon(124, 2)},
		{"etcd-leases", func(b *testing.B, _ server, e *etcdtest.Etcd, due time.Time) int {
			putLeases(b, e.Client, n, due)
			return 0
		}},
		{"naive-in-sequence", naive(1)},
		{"naive-64-in-flight", naive(64)},
	} {
		b.Run(way.name, func(b *testing.B) {
			s := startEtcd(b)
			client := s.etcd()
			e := etcdtest.On(b, client)
			measure := measureClient(b, s.etcd())
			<-time.After(3 * time.Second)
			idle := quantile(measure(), .99)
			due := time.Now().Add(30*time.Second + time.Duration(n)*time.Millisecond/4).Truncate(time.Second)
			finish := deletions(b, client, n)
			pid := way.prepare(b, s, e, due)
			require.Positive(b, time.Until(due), "the locks were not ready in time")
			<-time.After(time.Until(due))
			server, remover := cpuTime(b, s.pid), time.Duration(0)
			if pid != 0 {
				remover = cpuTime(b, pid)
			}
			measure = measureClient(b, s.etcd())
			_, last := finish()
			busy := quantile(measure(), .99)
			rate := float64(n) / last.Sub(due).Seconds()
			if bare == 0 {
				bare = rate
			}
			b.ReportMetric(rate, "locks/s")
			b.ReportMetric(rate/bare, "x-bare")
			b.ReportMetric(milliseconds(busy), "others-p99-ms")
			b.ReportMetric(float64(busy)/float64(idle), "others-p99-x-idle")
			b.ReportMetric((cpuTime(b, s.pid) - server).Seconds(), "etcd-cpu-s")
			if pid != 0 && pid != os.Getpid() {
				b.ReportMetric((cpuTime(b, pid) - remover).Seconds(), "remover-cpu-s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// putLeases writes n locks, each with a lease of its own that ends when it is due or up to a second later.
func putLeases(b *testing.B, client *clientv3.Client, n int, due time.Time) {
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(64)
	for i := range n {
		g.Go(func() error {
			lease, err := client.Grant(ctx, int64(math.Ceil(time.Until(due).Seconds())))
			if err != nil {
				return err
			}
			_, err = client.Txn(ctx).Then(lockOps(name(i), due, due, clientv3.WithLease(lease.ID))...).Commit()
			return err
		})
	}
	require.NoError(b, g.Wait())
}

// naiveReaper is what many have written: a list of the locks when they are due, and one transaction for each that compares
// the uuid.
func naiveReaper(b *testing.B, client *clientv3.Client, n, inFlight int, due time.Time) {
	<-time.After(time.Until(due))
	g, ctx := errgroup.WithContext(context.WithoutCancel(b.Context()))
	g.SetLimit(inFlight)
	for i := range n {
		g.Go(func() error {
			from := prefix + name(i) + "/"
			held, err := client.Get(ctx, from+"uuid")
			if err != nil {
				return err
			}
			_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.Value(from+"uuid"), "=", string(held.Kvs[0].Value))).
				Then(clientv3.OpDelete(from, clientv3.WithPrefix())).Commit()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Error(err)
	}
}

// growth measures a daemon with n locks, 10 seconds long with 1,000 renewals a second.
func growth(b *testing.B, binary string, n int) {
	s := startEtcd(b, "--quota-backend-bytes", strconv.Itoa(8<<30))
	client := s.etcd()
	future := time.Now().Add(2 * time.Hour)
	putLocks(etcdtest.On(b, client), n, future, future)
	began := time.Now()
	stream, err := client.GetStream(b.Context(), prefix, clientv3.WithPrefix())
	require.NoError(b, err)
	for chunk := range stream {
		require.NoError(b, chunk.Err())
	}
	bare := time.Since(began)
	d, ready := launch(b, binary, s.addr)
	took := func(url string) time.Duration {
		var all []time.Duration
		for range 5 {
			began := time.Now()
			scrape(b, url)
			all = append(all, time.Since(began))
		}
		return quantile(all, .5)
	}
	b.ReportMetric(ready.Seconds(), "ready-s")
	b.ReportMetric(ready.Seconds()/bare.Seconds(), "x-bare-stream")
	b.ReportMetric(milliseconds(took(d.base+"/metrics")), "scrape-ms")
	b.ReportMetric(milliseconds(took(d.web+"/")), "page-ms")
	b.ReportMetric(d.metric("process_resident_memory_bytes")/(1<<20), "resident-MiB")
	during := func() (etcd, daemon float64) {
		const long = 10 * time.Second
		before, mine := cpuTime(b, s.pid), cpuTime(b, d.pid)
		<-time.After(long)
		return 100 * (cpuTime(b, s.pid) - before).Seconds() / long.Seconds(), 100 * (cpuTime(b, d.pid) - mine).Seconds() / long.Seconds()
	}
	_, idle := during()
	b.ReportMetric(idle, "idle-cpu%")
	stop := renew(b, client, n)
	etcd, busy := during()
	stop()
	b.ReportMetric(busy, "renewals-cpu%")
	b.ReportMetric(etcd, "renewals-etcd-cpu%")
	b.ReportMetric(0, "ns/op")
}
