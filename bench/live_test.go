package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// streams is the number of open event streams, queries how many of them differ at most.
const streams, queries = 100, 32

// BenchmarkEvents measures how long after a client sends the transaction that takes a lock the
// event stream of a dashboard has it, and how long after that the watch of another client does:
// with the given number of other locks, in a quiet cluster and with 1,000 renewals per second.
func BenchmarkEvents(b *testing.B) {
	binary := buildDaemon(b)
	for _, locks := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("locks-%d", locks), func(b *testing.B) {
			e, future := newEtcd(b), time.Now().Add(2*time.Hour)
			putLocks(e, locks, future, future)
			d, _ := launch(b, binary, e.Endpoints()...)
			events, watched := follow(b, d.web, ""), watchLocks(b, e.Client)
			report := func(how string, pause time.Duration) {
				var taken, seen []time.Duration
				for i := range 20 {
					time.Sleep(pause + time.Duration(i*7)*time.Millisecond) //nolint:forbidigo // at any moment of the pause between two passes
					lock, start := fmt.Sprintf("event/%s/%d", how, i), time.Now()
					e.Put(lockOps(lock, start.Add(30*time.Minute), future)...)
					seen = append(seen, await(watched, lock).Sub(start))
					taken = append(taken, await(events, lock).Sub(start))
				}
				b.ReportMetric(float64(quantile(seen, .5).Microseconds())/1000, how+"-watch-p50-ms")
				b.ReportMetric(float64(quantile(taken, .5).Microseconds())/1000, how+"-p50-ms")
				b.ReportMetric(float64(taken[len(taken)-1].Microseconds())/1000, how+"-max-ms")
			}
			report("quiet", 2*time.Second)
			stop := renew(b, e.Client, locks)
			defer stop()
			report("busy", time.Second/2)
		})
	}
}

// moment is when a client saw a lock, or a line that names it.
type moment struct {
	text string
	at   time.Time
}

func await(moments <-chan moment, lock string) time.Time {
	for m := range moments {
		if strings.Contains(m.text, lock) {
			return m.at
		}
	}
	return time.Time{}
}

// follow reads an event stream until the end of b. It returns once the first events have come.
func follow(b *testing.B, base, query string) <-chan moment {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, base+"/api/v1/events?"+query, nil)
	require.NoError(b, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, resp.Body.Close()) })
	require.Equal(b, http.StatusOK, resp.StatusCode)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	require.True(b, lines.Scan())
	moments := make(chan moment, 1000)
	go func() {
		defer close(moments)
		for lines.Scan() {
			select {
			case moments <- moment{lines.Text(), time.Now()}:
			default: // nobody asks
			}
		}
	}()
	return moments
}

// watchLocks is what any client of etcd sees.
func watchLocks(b *testing.B, client *clientv3.Client) <-chan moment {
	moments := make(chan moment, 1000)
	events := client.Watch(b.Context(), prefix+"event/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	go func() {
		defer close(moments)
		for r := range events {
			for _, ev := range r.Events {
				if ev.Type == mvccpb.Event_PUT && strings.HasSuffix(string(ev.Kv.Key), "/uuid") {
					moments <- moment{string(ev.Kv.Key), time.Now()}
				}
			}
		}
	}()
	return moments
}

// followMany opens streams, with n different queries, and discards what they send.
func followMany(b *testing.B, base string, n int) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	for i := range streams {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/api/v1/events?hostname=worker-%02d.example.org&limit=%d", base, i%n%16, 100+i%n/16), nil)
		require.NoError(b, err)
		resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // closed by the goroutine that reads it
		require.NoError(b, err)
		require.Equal(b, http.StatusOK, resp.StatusCode)
		go func() {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}()
	}
	return cancel
}

// BenchmarkStreams measures what 100 event streams cost the daemon, with 100,000 locks and 1,000
// renewals per second: CPU time and memory without streams, with equal queries and with different
// ones.
func BenchmarkStreams(b *testing.B) {
	const locks = 100_000
	e, future := newEtcd(b), time.Now().Add(time.Hour)
	putLocks(e, locks, future, future)
	d, _ := launch(b, buildDaemon(b), e.Endpoints()...)
	defer renew(b, e.Client, locks)()
	for _, with := range []struct {
		name    string
		queries int
	}{{"none", 0}, {"equal", 1}, {"different", queries}} {
		stop := func() {}
		if with.queries > 0 {
			stop = followMany(b, d.web, with.queries)
		}
		renewed := d.metric("unlocker_lock_renewals_total")
		b.ReportMetric(100*d.cpu(), with.name+"-cpu%")
		b.ReportMetric((d.metric("unlocker_lock_renewals_total")-renewed)/footprintTime.Seconds(), with.name+"-renewals/s")
		b.ReportMetric(d.metric("process_resident_memory_bytes")/(1<<20), with.name+"-rss-MiB")
		b.ReportMetric(d.metric("go_memstats_heap_alloc_bytes")/(1<<20), with.name+"-heap-MiB")
		stop()
	}
}

// BenchmarkRemovalWithStreams removes 20,000 locks that are due at once, and single ones, with 100
// open event streams and without them.
func BenchmarkRemovalWithStreams(b *testing.B) {
	rates, delays := map[int]float64{}, map[int]float64{}
	for range b.N {
		for _, n := range []int{0, 1, queries, 0, 1, queries} {
			rate, delay := removeBeside(b, n)
			rates[n] += rate / 2
			delays[n] += float64(delay.Microseconds()) / 2000
		}
		for n, name := range map[int]string{1: "equal", queries: "different"} {
			b.ReportMetric(rates[n]/rates[0], name+"-rate-x-none")
			b.ReportMetric(delays[n]/delays[0], name+"-delay-x-none")
		}
		b.ReportMetric(rates[0], "none/s")
		b.ReportMetric(delays[0], "none-due-to-gone-ms")
	}
}

func removeBeside(b *testing.B, n int) (rate float64, delay time.Duration) {
	e := newEtcd(b)
	a, stop := startDaemon(b, e, func(c *config.Config) { c.Web.Listen = "127.0.0.1:0" })
	defer stop()
	if n > 0 {
		defer followMany(b, "http://"+a.WebAddr(), n)()
	}
	var delays []time.Duration
	for i := range 15 {
		delays = append(delays, dueDelete(b, e.Client, name(removals+i), time.Now().Add(idleTime)))
	}
	finish := deletions(b, e.Client, removals)
	unlock := time.Now().Add(8 * time.Second).Truncate(time.Second)
	putLocks(e, removals, unlock, unlock)
	first, last := finish()
	return removals / last.Sub(first).Seconds(), quantile(delays, .5)
}

// BenchmarkPages reads filtered pages from a daemon with 200,000 locks.
func BenchmarkPages(b *testing.B) {
	const locks, overdue = 200_000, 1_000
	e, future := newEtcd(b), time.Now().Add(time.Hour)
	putLocks(e, locks, future, future)
	putLocks(e, overdue, time.Now(), future)
	a, stop := startDaemon(b, e, func(c *config.Config) { c.Web.Listen = "127.0.0.1:0" })
	defer stop()
	for _, query := range []string{"", "sort=urgency", "state=overdue", "q=0001999", "hostname=worker-03.example.org&sort=urgency&limit=1000"} {
		b.Run(query, func(b *testing.B) {
			for range b.N {
				scrape(b, fmt.Sprintf("http://%s/api/v1/locks?%s", a.WebAddr(), query))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/page")
		})
	}
}
