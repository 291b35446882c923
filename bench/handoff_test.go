package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// holdTime is how long each holder keeps the lock.
const holdTime = 5 * time.Millisecond

// BenchmarkHandoff hands a lock on among waiters, whose number stays the same: who has
// released it waits again as soon as another has it. It leaves out the begin, as many turns as there are
// lockers, in which they connect and get leases, and the end, in which they wait no more.
func BenchmarkHandoff(b *testing.B) {
	etcd := func(b *testing.B) server { return startEtcd(b) }
	for _, waiters := range []int{2, 10, 100, 1000} {
		for _, c := range []struct {
			name     string
			start    func(*testing.B) server
			join     func(server) locker
			requests func(server) map[string]float64
		}{
			{"mutex", etcd, newMutex, server.etcdRequests},
			{"concurrency", etcd, newConcurrency, server.etcdRequests},
			{"redsync-fsync", func(b *testing.B) server { return startRedis(b, true) }, newRedsync, server.redisRequests},
		} {
			b.Run(fmt.Sprintf("%s-%d", c.name, waiters), func(b *testing.B) {
				for range b.N {
					s := c.start(b)
					type sample struct {
						requests map[string]float64
						cpu      time.Duration
					}
					var samples []sample
					q := queue{begin: waiters + 1, measured: max(300, 10*min(waiters, 100), 3*waiters)}
					q.sample = func() { samples = append(samples, sample{c.requests(s), cpuTime(b, s.pid)}) }
					for range waiters + 1 {
						q.lockers = append(q.lockers, c.join(s))
					}
					q.run(b)
					for kind, n := range samples[1].requests {
						b.ReportMetric((n-samples[0].requests[kind])/float64(q.measured), kind+"/lock")
					}
					b.ReportMetric(float64((samples[1].cpu-samples[0].cpu).Microseconds())/1000/float64(q.measured), "server-cpu-ms/lock")
					b.ReportMetric(float64(quantile(q.handed, .5).Microseconds())/1000, "median-handoff-ms")
					b.ReportMetric(float64(quantile(q.handed, .99).Microseconds())/1000, "p99-handoff-ms")
					b.ReportMetric(quantile(q.waits, 1).Seconds()*1000, "longest-wait-ms")
					b.ReportMetric(float64(quantile(q.waits, 1))/float64(quantile(q.waits, .5)), "longest-x-median-wait")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// queue is what those who take turns with one lock have in common.
type queue struct {
	lockers []locker
	// begin are the turns that are left out, measured those after them.
	begin, measured int
	sample          func() // called by the holder before the first measured hand-off, and after the last

	mu       sync.Mutex
	turns    int
	next     chan struct{} // closed when the lock is taken the next time
	released time.Time
	// handed are the times from the begin of an unlock until the next holder has the lock,
	// waits those from the begin of a lock.
	handed, waits []time.Duration
}

// run lets all take turns.
func (q *queue) run(b *testing.B) {
	q.next = make(chan struct{})
	var all errgroup.Group
	for _, lock := range q.lockers {
		all.Go(func() error {
			for more := true; more; {
				var err error
				if more, err = q.turn(b.Context(), lock); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(b, all.Wait())
}

// turn takes the lock once, and reports whether to go on.
func (q *queue) turn(ctx context.Context, lock locker) (more bool, err error) {
	began := time.Now()
	unlock, err := lock(ctx)
	if err != nil {
		return false, err
	}
	if n := q.took(began); n == q.begin || n == q.begin+q.measured {
		q.sample()
	}
	<-time.After(holdTime)
	q.mu.Lock()
	q.released = time.Now()
	next := q.next
	more = q.turns < q.begin+q.measured
	q.mu.Unlock()
	if err := unlock(ctx); err != nil || !more {
		return false, err
	}
	<-next
	return true, nil
}

// took notes that the lock was taken, and returns which turn this is, from 1.
func (q *queue) took(began time.Time) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if q.turns++; q.turns > q.begin && q.turns <= q.begin+q.measured {
		q.handed = append(q.handed, now.Sub(q.released))
		q.waits = append(q.waits, now.Sub(began))
	}
	close(q.next)
	q.next = make(chan struct{})
	return q.turns
}
