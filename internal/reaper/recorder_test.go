package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// writer is Records, and fails with the error after it has written some.
type writer struct {
	mu      sync.Mutex
	names   []string
	batches []int
	some    int
	err     error
}

func (w *writer) Write(_ context.Context, removed []api.Forced) (int, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(removed)
	if w.err != nil {
		n = min(w.some, n)
	}
	for i := range removed[:n] {
		w.names = append(w.names, removed[i].Name)
	}
	w.batches = append(w.batches, len(removed))
	return n, errors.Is(w.err, context.DeadlineExceeded), w.err
}

func (w *writer) set(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *writer) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.names...)
}

func recording(w reaper.Records) func(*reaper.Options) {
	return func(o *reaper.Options) { o.Records, o.Replica = w, "replica-1" }
}

// While locks are due no record is written, and afterwards many at a time.
func TestS6_RecordsWaitUntilNoRemovalIsDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := &writer{}
		h := newHarness(t, nil, recording(w))
		const n = 100
		all := names("a%03d", n)
		h.expired(all...)
		h.before = func(context.Context) {
			<-time.After(50 * time.Millisecond) // a slow etcd
			if len(h.source.due) > 0 {
				require.Empty(t, w.written())
			}
		}
		h.remove(all...)
		<-time.After(time.Second)
		synctest.Wait()
		require.ElementsMatch(t, all, w.written())
		require.LessOrEqual(t, len(w.batches), 3)
		require.NotContains(t, w.batches, 0)
		require.Zero(t, h.Stats().RecordsDropped)
	})
}

// What etcd refuses is dropped, counted and said once. What it does not answer is written later.
func TestRecordsThatCannotBeWritten(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		kept bool
	}{
		"no space":  {rpctypes.ErrNoSpace, false},
		"no right":  {rpctypes.ErrPermissionDenied, false},
		"too many":  {records.ErrFull, false},
		"no answer": {context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := &writer{err: fmt.Errorf("explained: %w", c.err)}
				h := newHarness(t, nil, recording(w))
				h.expired("a", "b", "c")
				for _, name := range []string{"a", "b"} {
					h.remove(name)
					<-time.After(5 * time.Second)
				}
				w.set(nil)
				h.remove("c")
				<-time.After(5 * time.Second)
				synctest.Wait()
				want, dropped, said := []string{"c"}, 2, 1
				if c.kept {
					want, dropped, said = []string{"a", "b", "c"}, 0, 0
				}
				require.Equal(t, want, w.written())
				require.EqualValues(t, dropped, h.Stats().RecordsDropped)
				require.Len(t, h.log.with(t, api.LogRecordsDropped, ""), said)
				require.Len(t, h.Ledger().Page("", 10), 3, "this replica knows them all the same")
			})
		})
	}
}

// etcd takes some of the records at a time, and refuses others: those are dropped and said, once until one was written.
func TestRecordsOfWhichSomeCannotBeWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := &writer{err: rpctypes.ErrNoSpace, some: 1}
		h := newHarness(t, nil, recording(w))
		for i, name := range []string{"a", "b"} {
			h.expired(name+"1", name+"2", name+"3")
			h.remove(name+"1", name+"2", name+"3")
			<-time.After(5 * time.Second)
			require.Len(t, w.written(), i+1)
			require.EqualValues(t, 2*(i+1), h.Stats().RecordsDropped)
			require.Len(t, h.log.with(t, api.LogRecordsDropped, ""), i+1)
		}
	})
}

// A replica that stops writes its records first, if etcd answers.
func TestRecordsAreWrittenBeforeTheEnd(t *testing.T) {
	for name, err := range map[string]error{"etcd answers": nil, "it does not": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := &writer{err: context.DeadlineExceeded}
				h := newHarness(t, nil, recording(w))
				h.expired("a")
				h.remove("a")
				synctest.Wait()
				w.set(err)
				h.stop()
				require.Equal(t, err == nil, len(w.written()) == 1)
				require.EqualValues(t, 1-len(w.written()), h.Stats().RecordsDropped)
			})
		})
	}
}

// What etcd refuses of the records at the end keeps it from no others.
func TestRecordsAfterARefusedOneAreWrittenBeforeTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := &writer{err: context.DeadlineExceeded}
		h := newHarness(t, nil, recording(recordsOnce{w}))
		all := names("a%03d", 100)
		h.expired(all...)
		h.remove(all...)
		synctest.Wait()
		w.set(rpctypes.ErrNoSpace)
		h.stop()
		require.Len(t, w.written(), 100-64)
		require.EqualValues(t, 64, h.Stats().RecordsDropped)
	})
}

// recordsOnce is a writer that etcd refuses once.
type recordsOnce struct{ *writer }

func (r recordsOnce) Write(ctx context.Context, removed []api.Forced) (int, bool, error) {
	n, later, err := r.writer.Write(ctx, removed)
	if errors.Is(err, rpctypes.ErrNoSpace) {
		r.set(nil)
	}
	return n, later, err
}

// A removal works at full quota; its record does not, and harms nothing.
func TestS5_RecordsWithoutSpaceAreDropped(t *testing.T) {
	e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	c := config.Default()
	c.Etcd.Endpoints = e.Endpoints()
	client, err := etcd.New(etcd.Options{Etcd: c.Etcd})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	w := &records.Writer{Config: c, Client: client, Full: func() bool { return false }}
	h := newHarness(t, e.Client, recording(w))
	h.expired("a", "b", "c")
	h.remove("a")
	recorded := func() int64 {
		resp, err := e.Client.Get(t.Context(), c.AuditKeys(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		return resp.Count
	}
	h.await(func() bool { return recorded() == 1 })
	for err == nil {
		_, err = e.Client.Put(t.Context(), "/filler", string(make([]byte, 256<<10)))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	h.remove("b", "c")
	h.await(func() bool { return h.Stats().RecordsDropped == 2 })
	require.Empty(t, h.keys())
	require.EqualValues(t, 1, recorded())
	require.Len(t, h.log.with(t, api.LogRecordsDropped, ""), 1)
}

// A record has all that the log has of a removal.
func TestS7_RecordsHaveTheInputsOfTheVerdict(t *testing.T) {
	var got []api.Forced
	h := newHarness(t, sharedClient(t), recording(recordsFunc(func(removed []api.Forced) { got = append(got, removed...) })))
	h.set("a", "uuid", "u-a", "hostname", "host", "owner", "o", "pid", "12", "auto_unlock_at", expiry)
	token := h.due("a").Token
	h.remove("a")
	h.stop()
	require.Len(t, got, 1)
	f := got[0]
	require.Equal(t, []any{"a", "u-a", token, "host", "o", "12", verdict.Expiry, "replica-1"},
		[]any{f.Name, f.UUID, f.Token, f.Hostname, f.Owner, f.PID, f.Trigger, f.Replica})
	require.Equal(t, verdict.Decide(f.Verdict.Inputs), *f.Verdict)
	require.Contains(t, f.Fields, api.Field{Name: "pid", Value: "12"})
	require.Equal(t, h.Ledger().Page("a", 1), got)
}

type recordsFunc func([]api.Forced)

func (f recordsFunc) Write(_ context.Context, removed []api.Forced) (int, bool, error) {
	f(removed)
	return len(removed), false, nil
}
