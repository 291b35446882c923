//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// Neither the browser nor the daemon has to cope with all locks at once. The figures are those
// of docs/performance.md.
func TestManyLocksInTheBrowser(t *testing.T) {
	s := newSite(t)
	s.putMany(0, 1000)
	s.serve(s.Endpoints()[0])
	s.awaitMetric(1000, "unlocker_locks")
	s.report(1000)
	s.putMany(1000, 100_000)
	s.awaitMetric(100_000, "unlocker_locks")
	b := s.report(100_000)
	require.Equal(t, "100 of 100,000 locks", b.text("#shown"))
	b.await(`document.querySelectorAll("#locks tbody tr").length === 100`) // the next one takes the place of the last measured
	b.screenshot("many")
	// All are reached by pages and by filters.
	b.do(chromedp.Click(chromedp.CSS(".pages a")))
	b.await(`location.search.startsWith("?after=") && document.querySelectorAll("#locks tbody tr").length === 100`)
	require.Contains(t, b.text("#live"), "refresh")
	b.do(chromedp.Navigate(s.web + "/?q=099999"))
	b.awaitText("#shown", "1 of 1 locks that match")
	b.do(chromedp.Navigate(s.web + "/?limit=1000"))
	b.await(isLive)
	b.awaitText("#shown", "1,000 of 100,000 locks")
}

// putMany acquires the locks from one number up to another.
func (s *site) putMany(from, to int) {
	s.t.Helper()
	now := time.Now()
	var ops []clientv3.Op
	for i := from; i < to; i++ {
		name := fmt.Sprintf("%sfleet/%06d/", s.Prefix, i)
		for field, value := range map[string]string{
			"uuid": fmt.Sprintf("00000000-0000-4000-8000-%012d", i), "hostname": fmt.Sprintf("worker-%d", i%50), "owner": fmt.Sprintf("service-%d", i%20),
			"locked_at": etcdtest.Stamp(now), "alert_at": etcdtest.Stamp(now.Add(time.Hour)), "auto_unlock_at": etcdtest.Stamp(now.Add(2 * time.Hour)),
		} {
			ops = append(ops, clientv3.OpPut(name+field, value))
		}
	}
	for chunk := range slices.Chunk(ops, 6_000) {
		s.Put(chunk...)
	}
}

// report opens the dashboard, and logs how fast it is.
func (s *site) report(n int) *tab {
	s.t.Helper()
	b := s.open("/", chromedp.EmulateViewport(1280, 560))
	b.await(isLive)
	paint := eval[float64](b, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
	answer := eval[float64](b, `(e => e.responseStart - e.requestStart)(performance.getEntriesByType("navigation")[0])`)
	heap := eval[float64](b, `performance.memory.usedJSHeapSize`) / (1 << 20)
	bytes := eval[int](b, `performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource")).filter(e => !e.name.includes("/api/")).reduce((n, e) => n + e.transferSize, 0)`)
	require.Less(s.t, bytes, 60<<10)
	var took []time.Duration
	for i := range 20 {
		name := fmt.Sprintf("soon-%d-%d", n, i)
		b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`window.seen = new Promise(done => new MutationObserver((_, o) => {
			if ([...document.querySelectorAll("#locks th a")].some(a => a.textContent === %q)) { o.disconnect(); requestAnimationFrame(() => done(Date.now())); }
		}).observe(document.querySelector("#locks tbody"), {childList: true})); undefined`, name)))
		s.Put(s.Lock(name, time.Now().Add(-time.Second), time.Now().Add(time.Hour))...)
		taken := time.Now()
		took = append(took, time.UnixMilli(eval[int64](b, `window.seen`)).Sub(taken))
		s.remove(name)
		b.awaitText("#shown", "of "+fmt.Sprintf("%d,%03d", n/1000, n%1000)+" locks")
	}
	slices.Sort(took)
	s.t.Logf("%d locks: first paint %.0f ms (answer %.0f ms), %d bytes, JavaScript heap %.1f MiB, lock taken until row drawn: median %s, slowest of 20 %s",
		n, paint, answer, bytes, heap, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	return b
}
