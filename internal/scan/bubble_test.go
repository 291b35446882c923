package scan

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// bubbled is a scanner on an etcd in memory, under virtual time. The client that writes
// is another one, which no fault of link affects.
type bubbled struct {
	*world
	cluster *memetcd.Cluster
	link    *memetcd.Link
	// block is for how long the table stalls when it next schedules a lock.
	block atomic.Int64
	// slow is how long reads of the current revision take.
	slow atomic.Int64
	// listings and checks count the listings and the reads of the history check.
	listings, checks atomic.Int32
	stop             func() error
}

// status requires that the scanner is connected, or that it is not.
func (w *bubbled) status(connected bool) {
	w.t.Helper()
	synctest.Wait()
	require.Equal(w.t, connected, w.Status().Connected, w.Status().LastError)
}

// failures requires that the watch has failed for these reasons and no others.
func (w *bubbled) failures(want ...Reason) {
	w.t.Helper()
	for _, r := range Reasons() {
		require.Equal(w.t, slices.Contains(want, r), w.Status().Restarts[r] > 0, r)
	}
}

const seconds = time.Second

// bubble runs a test with a scanner that is connected, of the tolerance of the other
// tests and a freshness of 10 s.
func bubble(t *testing.T, test func(w *bubbled), edits ...func(*Options)) {
	t.Helper()
	bubbleFrom(t, nil, func(w *bubbled) {
		require.True(w.t, w.Status().Connected)
		test(w)
	}, edits...)
}

// bubbleFrom calls begin before the scanner starts.
func bubbleFrom(t *testing.T, begin, test func(w *bubbled), edits ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pass(25 * 365 * 24 * time.Hour) // stamps of the year 2000 are implausible
		w := &bubbled{cluster: memetcd.New(memetcd.Options{})}
		t.Cleanup(func() { require.NoError(t, w.cluster.Close()) })
		direct, err := w.cluster.Connect()
		require.NoError(t, err)
		w.link, err = w.cluster.Connect()
		require.NoError(t, err)
		w.link.OnRequest(w.count)
		start := time.Now()
		tab, err := table.New(table.Options{
			Raw:   func() time.Duration { return time.Since(start) },
			Rules: verdict.Rules{Reaper: config.Reaper{Mode: verdict.Off, ClockTolerance: tolerance, OrphanGrace: time.Minute}},
			Allowance: func(int64, time.Time, bool) (deadline, patience time.Duration) {
				pass(time.Duration(w.block.Swap(0)))
				return 0, 0
			},
			HoldDuration: ignored{}, RenewalMargin: ignored{},
		})
		require.NoError(t, err)
		background(t, tab.Run)
		s := newScanner(t, w.link.Client, append([]func(*Options){func(o *Options) { o.Freshness, o.RequestTimeout, o.Table = 10*seconds, timeout, tab }}, edits...)...)
		w.world = &world{t, etcdtest.On(t, direct.Client), s}
		if begin != nil {
			begin(w)
		}
		w.stop = background(t, w.Run)
		pass(seconds)
		test(w)
	})
}

func (w *bubbled) count(req memetcd.Message) memetcd.Faults {
	r, read := req.(*etcdserverpb.RangeRequest)
	switch {
	case !read:
	case r.Revision == 0:
		return memetcd.Faults{Request: time.Duration(w.slow.Load())}
	case len(r.RangeEnd) > 0:
		w.listings.Add(1)
	default:
		w.checks.Add(1)
	}
	return memetcd.Faults{}
}

// observed returns what our clocks know of a lock that the table has.
func (w *bubbled) observed(name string) verdict.Observation {
	w.t.Helper()
	synctest.Wait()
	it, found, err := w.Table.Get(w.ctx(), name)
	require.NoError(w.t, err)
	require.True(w.t, found, name)
	return it.Observation
}

// live requires that the newest write of a lock was observed live, or that it was not.
func (w *bubbled) live(name string, want bool) {
	w.t.Helper()
	o := w.observed(name)
	require.Equal(w.t, want, o.Measured, name)
	require.Equal(w.t, !want, o.Late, name)
	if want {
		require.Zero(w.t, o.Offset.Round(10*time.Millisecond), name)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }
