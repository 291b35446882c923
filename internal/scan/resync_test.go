package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
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

// The events up to the revision that was checked are awaited, or the listing would be of before them.
func TestResyncAwaitsTheWatch(t *testing.T) {
	t.Parallel()
	w := idle(t)
	for name, c := range map[string]struct {
		progress error // of the third request for progress
		stalls   bool
		check    int // the number of the read that fails, if any
		want     error
	}{
		"reached":                     {},
		"reached after a stall":       {stalls: true},
		"no progress":                 {progress: errFailing, want: errFailing},
		"a check fails after a stall": {stalls: true, check: 1, want: errFailing},
	} {
		t.Run(name, func(t *testing.T) {
			kv := w.Client.KV
			defer func() { w.Client.KV = kv }()
			if c.check > 0 {
				w.Client.KV = &failing{KV: kv, from: c.check}
			}
			watch := w.watch(5)
			if c.stalls {
				watch.stalled()
			}
			requests := 0
			err := watch.await(w.ctx(), 9, func(context.Context) error {
				if requests++; requests < 3 {
					return nil
				}
				if len(watch.resumed) == 0 {
					watch.seen.Store(9)
				}
				return c.progress
			})
			require.ErrorIs(t, err, c.want)
			if c.want == nil {
				require.EqualValues(t, 9, watch.seen.Load())
				require.GreaterOrEqual(t, requests, 3)
				require.Empty(t, watch.resumed)
				require.Equal(t, c.stalls, watch.liveAfter.Load() < notLive, "later events are live again")
			}
		})
	}
}

// Each listing is logged with what it read. That of a resync is not by default.
func TestListingsAreLogged(t *testing.T) {
	var log bytes.Buffer
	bubbleFrom(t, func(w *bubbled) { w.acquire("a", "b") }, func(w *bubbled) {
		pass(30 * seconds)
		require.NoError(t, w.stop())
		var got []string
		for line := range bytes.Lines(log.Bytes()) {
			var l struct {
				Level, Msg  string
				Locks, Keys int
				Resync      bool
			}
			require.NoError(t, json.Unmarshal(line, &l))
			if l.Msg == api.LogListed {
				got = append(got, fmt.Sprint(l.Level, " ", l.Locks, " of ", l.Keys, " ", l.Resync))
			}
		}
		keys := 2 * len(w.fieldsOf("a"))
		require.Equal(t, []string{fmt.Sprintf("INFO 2 of %d false", keys), fmt.Sprintf("DEBUG 2 of %d true", keys)}, got)
	}, func(o *Options) {
		o.Resync, o.Logger = 30*seconds, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
}

// Until a listing ends, what the table has is in part of before.
func TestStatusShowsAListing(t *testing.T) {
	bubbleFrom(t, func(w *bubbled) { w.link.KV = &hanging{KV: w.link.KV} }, func(w *bubbled) {
		require.True(t, w.Status().Listing)
	})
}
