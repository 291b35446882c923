package scan

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func often(o *Options) { o.Resync = 30 * time.Millisecond }

func TestResyncRepairsDriftAndCountsIt(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil, often)
	w.connected()
	w.acquire("a", "b")
	w.inLine()
	require.Zero(t, w.stats().Drift)
	forged := w.Status().Revision
	require.NoError(t, w.Table.Apply(w.ctx(), []table.Event{
		{Name: []byte("a"), Deleted: true, KV: protocol.KV{Field: protocol.FieldHostname, Mod: forged}},
		{Name: []byte("ghost"), KV: protocol.KV{Field: protocol.FieldUUID, Value: []byte("x"), Create: forged, Mod: forged}},
	}))
	w.eventually(func() bool { return w.stats().Drift == 2 }, "drift found")
	w.inLine()
	require.EqualValues(t, 2, w.stats().Drift)
	for reason, n := range w.Status().Restarts {
		require.Zero(t, n, reason)
	}
}

// TestResyncFindsNoDriftUnderWrites has owners at work during many resyncs.
func TestResyncFindsNoDriftUnderWrites(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil, often)
	w.connected()
	listings, last := 0, w.Status().Resynced
	stop := make(chan struct{})
	var owners sync.WaitGroup
	for i := range 4 {
		owners.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				w.owner(fmt.Sprintf("%d/%d", i, n%20))
			}
		})
	}
	w.eventually(func() bool {
		if r := w.Status().Resynced; !r.Equal(last) {
			listings, last = listings+1, r
		}
		return listings >= 40
	}, "forty listings")
	close(stop)
	owners.Wait()
	w.inLine()
	s := w.stats()
	require.Zero(t, s.Drift)
	require.Positive(t, s.Renewed)
	require.Equal(t, s.Acquired, s.Released+uint64(len(w.known())))
	for reason, n := range w.Status().Restarts {
		require.Zero(t, n, reason)
	}
}

// owner takes a lock, renews it and lets it go.
func (w *world) owner(name string) {
	from, end := layout.Range(name)
	for _, ops := range [][]clientv3.Op{
		w.fieldsOf(name),
		{clientv3.OpPut(layout.Key(name, "auto_unlock_at"), protocol.TimestampOf(time.Now().Add(time.Hour)).String())},
		{clientv3.OpDelete(from, clientv3.WithRange(end))},
	} {
		if _, err := w.etcd.Client.Txn(w.t.Context()).Then(ops...).Commit(); err != nil {
			w.t.Error(err)
		}
	}
}

// The table is told the revision of a resync while no event can slip in: one
// behind it that removes a lock must not be undone by the listing.
func TestResyncBeginsWhereTheTableIs(t *testing.T) {
	t.Parallel()
	w := idle(t)
	watch := &watching{Scanner: w.Scanner}
	watch.seen.Store(7)
	watch.applying.Lock() // events are on their way to the table
	began := make(chan int64)
	go func() {
		rev, err := watch.begin(w.ctx())
		if err != nil {
			t.Error(err)
		}
		began <- rev
	}()
	watch.seen.Store(9)
	watch.applying.Unlock()
	require.EqualValues(t, 9, <-began)
}

func TestResyncFailureEndsTheWatch(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *bubbled) {
		w.link.Set(memetcd.Unreachable())
		pass(30*seconds + timeout)
		w.failures(etcd.Timeout)
		w.link.Set(memetcd.Faults{})
		pass(5 * seconds)
		w.status(true)
		w.acquire("a")
		w.inLine()
	}, func(o *Options) { o.Freshness, o.Resync = time.Minute, 30*seconds })
}
