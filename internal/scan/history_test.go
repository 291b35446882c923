package scan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestS3_TheHistoryIsThatOfTheNewestWriteSeen(t *testing.T) {
	t.Parallel()
	w := idle(t)
	key := layout.Key("a", "uuid")
	put := func(value string) *mvccpb.KeyValue {
		rev := w.etcd.Set("a", "uuid", value)
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: rev}
	}
	old := put("old")
	compacted := put("compacted")
	first := put("first")
	elsewhere, err := w.etcd.Client.Put(w.ctx(), "/elsewhere", "x")
	require.NoError(t, err)
	second := put("second")
	gone, err := w.etcd.Client.Delete(w.ctx(), key)
	require.NoError(t, err)
	_, err = w.etcd.Client.Put(w.ctx(), "/elsewhere", "x")
	require.NoError(t, err)
	_, err = w.etcd.Client.Compact(w.ctx(), first.ModRevision)
	require.NoError(t, err)
	cluster, head := gone.Header.ClusterId, gone.Header.Revision+1
	at := func(key, value string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: rev}
	}
	for name, c := range map[string]struct {
		cluster   uint64
		revision  int64
		write     *mvccpb.KeyValue
		deleted   bool
		regressed bool
	}{
		"nothing seen":                        {},
		"no write seen":                       {cluster: cluster, revision: head},
		"the write":                           {cluster: cluster, revision: head, write: second},
		"a write before":                      {cluster: cluster, revision: head, write: first},
		"a write that was none":               {cluster: cluster, revision: head, write: at(key, "first", elsewhere.Header.Revision), regressed: true},
		"the deletion":                        {cluster: cluster, revision: head, write: at(key, "", gone.Header.Revision), deleted: true},
		"compacted":                           {cluster: cluster, revision: head, write: compacted},
		"compacted, and another value":        {cluster: cluster, revision: head, write: at(key, "other", old.ModRevision)},
		"another cluster":                     {cluster: cluster + 1, revision: head, write: second, regressed: true},
		"a revision ahead":                    {cluster: cluster, revision: head + 1, write: second, regressed: true},
		"another value":                       {cluster: cluster, revision: head, write: at(key, "other", second.ModRevision), regressed: true},
		"not written at that revision":        {cluster: cluster, revision: head, write: at(key, "", head), regressed: true},
		"written before, with the same value": {cluster: cluster, revision: head, write: at(layout.Key("a", "x"), "second", second.ModRevision), regressed: true},
		"deleted there, as it is here":        {cluster: cluster, revision: head, write: at(key, "second", gone.Header.Revision), regressed: true},
		"put here, deleted there":             {cluster: cluster, revision: head, write: at(key, "", second.ModRevision), deleted: true, regressed: true},
		"deleted before":                      {cluster: cluster, revision: head, write: at(key, "", head), deleted: true, regressed: true},
		"deleted there, never here":           {cluster: cluster, revision: head, write: at(layout.Key("b", "x"), "", head), deleted: true, regressed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w.history.forget()
			w.history.saw(c.cluster, c.revision, c.write, c.deleted)
			w.history.doubt()
			h, err := w.checkHistory(w.ctx())
			if c.regressed {
				require.ErrorIs(t, err, errRegressed)
				require.NotEmpty(t, w.history.doubted(), "still to be checked")
				return
			}
			require.NoError(t, err)
			require.Equal(t, head, h.Revision)
			require.Empty(t, w.history.doubted())
		})
	}
}

// The write seen last is that of the newest revision, whatever the order.
func TestHistoryKeepsTheNewest(t *testing.T) {
	t.Parallel()
	w := idle(t)
	h := &w.history
	kv := func(key string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}
	}
	h.doubt()
	require.EqualValues(t, 5, h.saw(7, 5, kv("a", 4), false))
	require.EqualValues(t, 5, h.saw(0, 3, kv("b", 3), true))
	require.EqualValues(t, 6, h.saw(0, 6, nil, false))
	h.doubt()
	h.doubt() // nothing was seen in between
	h.saw(0, 6, kv("c", 4), true)
	h.doubt()
	want := []mark{
		{},
		{cluster: 7, revision: 6, write: write{key: "a", revision: 4, sum: h.sum(nil)}},
		{cluster: 7, revision: 6, write: write{key: "c", revision: 4, deleted: true, sum: h.sum(nil)}},
	}
	require.Equal(t, want, h.doubted())
	h.checked(2)
	require.Equal(t, want[2:], h.doubted())
	require.EqualValues(t, 7, h.cluster())
	h.forget()
	require.Empty(t, h.doubted())
	require.Zero(t, h.cluster())
}

// The watch stalls again during a check, and has shown nothing since the first time.
func TestS3_ADoubtDuringACheckLasts(t *testing.T) {
	t.Parallel()
	h := &idle(t).history
	for range 100 {
		h.doubt()
	}
	require.Len(t, h.doubts, 2)
	h.checked(len(h.doubted()))
	for range 3 {
		h.doubt()
		checking := len(h.doubted())
		h.doubt()
		h.checked(checking)
		require.Len(t, h.doubted(), 1)
	}
	h.saw(1, 7, nil, false)
	h.doubt() // next to another one
	require.Len(t, h.doubts, 2)
	checking := len(h.doubted())
	for range 100 {
		h.doubt()
	}
	require.Len(t, h.doubts, 3)
	h.checked(checking)
	require.Len(t, h.doubted(), 1)
}

// The first check fails, and by the time of the next the watch has shown writes of the
// other history.
func TestS3_AFailedCheckLeavesTheHistoryInDoubt(t *testing.T) {
	t.Parallel()
	for name, newest := range map[string]bool{"the doubt before": false, "the newest": true} {
		t.Run(name, func(t *testing.T) {
			w := idle(t)
			key := layout.Key("a", "uuid")
			rev := w.etcd.Set("a", "uuid", "here")
			there := &mvccpb.KeyValue{Key: []byte(key), Value: []byte("there"), ModRevision: rev}
			here := &mvccpb.KeyValue{Key: []byte(key), Value: []byte("here"), ModRevision: rev}
			seen := []*mvccpb.KeyValue{there, here}
			if newest {
				seen = []*mvccpb.KeyValue{here, there}
			}
			for _, kv := range seen {
				w.history.saw(0, rev, kv, false)
				w.history.doubt()
				ctx, cancel := context.WithCancel(w.ctx())
				cancel()
				_, err := w.checkHistory(ctx)
				require.ErrorIs(t, err, context.Canceled)
			}
			_, err := w.checkHistory(w.ctx())
			require.ErrorIs(t, err, errRegressed)
		})
	}
}

// regressed requires that a restore was noticed, once, and that nothing is left of
// the one before: neither locks nor what the clocks knew of them.
func (w *world) regressed(relisted ...string) {
	w.t.Helper()
	w.restarted(ReasonRegressed)
	w.inLine()
	require.EqualValues(w.t, 1, w.Status().Restarts[ReasonRegressed])
	require.Equal(w.t, 1, w.Status().History)
	require.Len(w.t, w.known(), len(relisted))
	for _, name := range relisted {
		it, found, err := w.Table.Get(w.ctx(), name)
		require.NoError(w.t, err)
		require.True(w.t, found, name)
		require.False(w.t, it.Observation.Measured, name)
		require.True(w.t, it.Observation.Late, name)
	}
	require.Zero(w.t, w.stats().Released, "nobody released them")
}

// Etcd comes back as it was before, and others write past what we saw before the client library
// resumes the watch.
func TestS3_ARollbackInPlaceThatOthersWrotePastIsNoticed(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	w := &world{t: t, etcd: cluster}
	w.acquire("kept", "renewed")
	cluster.Kill(0)
	require.NoError(t, cluster.Save())
	require.NoError(t, cluster.Restart(w.ctx()))
	p := cluster.Proxy(0)
	w.Scanner = newScanner(t, client(t, p.Addr()), func(o *Options) { o.Freshness = etcdtest.Soon })
	background(t, w.Run)
	w.connected()
	w.etcd.Renew("renewed", time.Now(), time.Now().Add(time.Hour))
	w.acquire("lost")
	w.inLine()
	p.Cut()
	cluster.Kill(0)
	require.NoError(t, cluster.Revert())
	require.NoError(t, cluster.Restart(w.ctx()))
	for i := range 20 {
		w.etcd.Set("other", "uuid", fmt.Sprint(i))
	}
	require.NoError(t, p.Heal())
	w.regressed("kept", "renewed", "other")
}

// The same under virtual time, with what is restored and what is in between.
func TestS3_AnotherHistoryIsNoticed(t *testing.T) {
	all := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	for name, c := range map[string]struct {
		how memetcd.Restored
		// down is how long the client has no connection; the library resumes the watch
		// by itself where that is short.
		down time.Duration
		// writes are those that others make past the restore.
		writes int
		// renewed: the holders have renewed since, so that no lock looks older.
		renewed bool
	}{
		"another cluster":                       {memetcd.Restored{NewCluster: true}, 0, 0, false},
		"another cluster, later":                {memetcd.Restored{NewCluster: true}, time.Minute, 100, false},
		"older":                                 {memetcd.Restored{}, 0, 0, false},
		"older, later":                          {memetcd.Restored{}, time.Minute, 0, false},
		"written past":                          {memetcd.Restored{}, seconds / 2, 100, false},
		"written past, later":                   {memetcd.Restored{}, time.Minute, 100, false},
		"bumped and compacted":                  {memetcd.Restored{Bump: 1_000_000}, 0, 0, false},
		"bumped and compacted, later":           {memetcd.Restored{Bump: 1_000_000}, time.Minute, 0, false},
		"bumped, compacted, written past":       {memetcd.Restored{Bump: 1_000_000}, seconds / 2, 100, false},
		"bumped, compacted, written past later": {memetcd.Restored{Bump: 1_000_000}, time.Minute, 100, false},
		"written past, and renewed":             {memetcd.Restored{}, seconds / 2, 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			var restored atomic.Int32
			bubble(t, func(w *bubbled) {
				w.acquire(all...)
				backup := w.cluster.Snapshot()
				pass(20 * seconds)
				for _, name := range all {
					w.etcd.Renew(name, time.Now(), time.Now().Add(time.Minute))
					w.live(name, true)
				}
				w.acquire("lost")
				w.live("lost", true)
				w.link.Set(memetcd.Faults{Refuse: c.down > 0})
				w.cluster.Restore(backup, c.how)
				for i := range c.writes {
					w.etcd.Set("other", "x", fmt.Sprint(i))
				}
				for _, name := range all {
					if c.renewed {
						w.etcd.Renew(name, time.Now(), time.Now().Add(time.Minute))
					}
				}
				pass(c.down)
				w.link.Set(memetcd.Faults{})
				if c.writes > 0 {
					w.regressed(append([]string{"other"}, all...)...)
				} else {
					w.regressed(all...)
				}
				pass(seconds)
				w.acquire("new")
				w.live("new", true)
				require.EqualValues(t, 1, restored.Load(), "others forget, too")
			}, func(o *Options) { o.Restored = func() { restored.Add(1) } })
		})
	}
}

// Nothing is missing in a backup that comes back as another cluster, while the watch is down.
func TestS3_AnotherClusterWithTheSameDataIsNoticed(t *testing.T) {
	bubble(t, func(w *bubbled) {
		w.acquire("a")
		w.live("a", true)
		w.link.Set(memetcd.Faults{Refuse: true})
		w.cluster.Restore(w.cluster.Snapshot(), memetcd.Restored{NewCluster: true})
		pass(time.Minute)
		w.link.Set(memetcd.Faults{})
		w.regressed("a")
	})
}

// Etcd goes back before a listing that it answers all the same, as others have written past its revision: what that
// shows must not replace what was seen before.
func TestS3_ARestoreBeforeAListingIsNoticed(t *testing.T) {
	list := &preceded{}
	bubbleFrom(t, func(w *bubbled) { list.KV, w.link.KV = w.link.KV, list }, func(w *bubbled) {
		w.acquire("a")
		backup := w.cluster.Snapshot()
		w.acquire("lost")
		w.live("lost", true)
		restore := func() {
			w.cluster.Restore(backup, memetcd.Restored{})
			for i := range 100 {
				w.etcd.Set("other", "x", fmt.Sprint(i))
			}
			w.etcd.Renew("a", time.Now(), time.Now().Add(time.Minute))
		}
		list.before.Store(&restore)
		w.link.Set(memetcd.Faults{Refuse: true})
		pass(time.Minute)
		w.link.Set(memetcd.Faults{})
		w.restarted(ReasonRegressed)
		require.Nil(t, list.before.Load())
		w.inLine()
		require.Equal(t, 1, w.Status().History)
		w.live("a", false)
	})
}

// Nothing but the listing has shown the newest write, and after the restore others have written past it.
func TestS3_ARestoreBehindAListingIsNoticed(t *testing.T) {
	var backup *memetcd.Snapshot
	bubbleFrom(t, func(w *bubbled) {
		w.acquire("a")
		backup = w.cluster.Snapshot()
		w.acquire("lost")
		_, err := w.etcd.Client.Put(w.ctx(), "/elsewhere", "x") // the watch begins at the revision of the listing
		require.NoError(w.t, err)
	}, func(w *bubbled) {
		w.link.Set(memetcd.Faults{Refuse: true})
		w.cluster.Restore(backup, memetcd.Restored{})
		w.acquire("b", "c")
		pass(time.Minute)
		w.link.Set(memetcd.Faults{})
		w.regressed("a", "b", "c")
	})
}

// The watch of another cluster is not applied, not even before the history was checked.
func TestS3_TheWatchOfAnotherClusterIsNotApplied(t *testing.T) {
	t.Parallel()
	s := newScanner(t, client(t, "127.0.0.1:1"))
	w := s.watch(1)
	show := func(cluster uint64, rev int64, name string) error {
		r := taking(rev, name)
		r.Header.ClusterId = cluster
		return w.each(t.Context(), r)
	}
	require.NoError(t, show(8, 2, "when none is known"))
	s.history.saw(7, 2, nil, false)
	require.NoError(t, show(7, 3, "ours"))
	require.NoError(t, show(0, 4, "of a proxy that does not say"))
	require.ErrorIs(t, show(8, 5, "another"), errRegressed)
	require.ElementsMatch(t, []string{"when none is known", "ours", "of a proxy that does not say"}, slices.Collect(maps.Keys((&world{t: t, Scanner: s}).known())))
}

// The error of a table that has stopped ends Run, and that of a Run which ends does not.
func TestARestoreIsNoErrorOfARunThatEnds(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"the table": false, "run": true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newScanner(t, client(t, "127.0.0.1:1"), func(o *Options) {
			var err error
			o.Table, err = table.New(table.Options{
				Rules: verdict.Rules{Reaper: config.Reaper{OrphanGrace: time.Minute}}, Raw: table.Raw(), HoldDuration: ignored{}, RenewalMargin: ignored{},
				Allowance: func(int64, time.Time, bool) (deadline, patience time.Duration) { return 0, 0 },
			})
			require.NoError(t, err)
		})
		if ends {
			cancel() // of a table that answers nobody
			require.NoError(t, s.failed(ctx, errRegressed), name)
			continue
		}
		require.NoError(t, background(t, s.Table.Run)())
		require.ErrorIs(t, s.failed(ctx, errRegressed), table.ErrStopped, name)
	}
}

// preceded calls a function before the next listing, once.
type preceded struct {
	clientv3.KV
	before atomic.Pointer[func()]
}

func (p *preceded) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	if before := p.before.Swap(nil); before != nil {
		(*before)()
	}
	return p.KV.GetStream(ctx, key, opts...)
}

// A restore with --bump-revision --mark-compacted of the real etcd.
func TestS3_ABumpedRestoreOfEtcdIsNoticed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cluster := etcdtest.Start(t, localetcd.Options{Dir: dir})
	w := &world{t: t, etcd: cluster}
	w.acquire("a", "b")
	cluster.Kill(0)
	require.NoError(t, cluster.Save())
	require.NoError(t, cluster.Restart(w.ctx()))
	w.Scanner = newScanner(t, client(t, cluster.Addr(0)))
	background(t, w.Run)
	w.connected()
	w.etcd.Renew("a", time.Now(), time.Now().Add(time.Hour))
	w.etcd.Renew("b", time.Now(), time.Now().Add(time.Hour))
	w.inLine()
	cluster.Kill(0)
	require.NoError(t, cluster.Revert())
	bump(t, filepath.Join(dir, "m0", "member", "snap", "db"), 1_000_000)
	require.NoError(t, cluster.Restart(w.ctx()))
	w.regressed("a", "b")
	require.Greater(t, w.Status().Revision, int64(1_000_000))
}

// bump is what etcdutl does to the data of a dead member: revisions continue that much
// later, and all before are compacted.
func bump(t *testing.T, path string, by int64) {
	t.Helper()
	_, err := os.Stat(path)
	require.NoError(t, err)
	be := backend.NewDefaultBackend(zap.NewNop(), path)
	tx := be.BatchTx()
	tx.LockOutsideApply()
	latest := mvcc.Revision{}
	require.NoError(t, tx.UnsafeForEach(schema.Key, func(k, _ []byte) error {
		if r := mvcc.BytesToRev(k); r.Main > latest.Main {
			latest = r
		}
		return nil
	}))
	latest.Main += by
	tx.UnsafePut(schema.Key, mvcc.RevToBytes(latest, mvcc.NewRevBytes()), nil)
	mvcc.UnsafeSetScheduledCompact(tx, latest.Main)
	tx.Unlock()
	be.ForceCommit()
	require.NoError(t, be.Close())
}

// Nothing that was seen is missing after the rollback, but a revision that only a
// progress notice had shown: the watch resumes past writes that it never shows.
func TestS3_WritesBelowTheRevisionOfAProgressNoticeAreListed(t *testing.T) {
	bubble(t, func(w *bubbled) {
		w.acquire("kept")
		backup := w.cluster.Snapshot()
		for range 20 {
			_, err := w.etcd.Client.Put(w.ctx(), "/elsewhere", "x")
			require.NoError(t, err)
		}
		pass(2 * seconds)
		require.Equal(t, w.cluster.Revision(), w.Status().Revision)
		w.link.Set(memetcd.Faults{Refuse: true})
		w.cluster.Restore(backup, memetcd.Restored{})
		w.acquire("hidden")
		for range 20 {
			_, err := w.etcd.Client.Put(w.ctx(), "/elsewhere", "y")
			require.NoError(t, err)
		}
		w.link.Set(memetcd.Faults{})
		pass(2 * seconds)
		require.Zero(t, w.Status().Restarts[ReasonRegressed])
		require.Contains(t, w.known(), "hidden")
		w.live("hidden", false)
		require.EqualValues(t, 1, w.stats().Drift)
	})
}

// A listing that shows an older history says so although it also fails, before that or after: the table says it only
// once.
func TestS3_AListingThatFailsStillSaysThatTheHistoryIsOlder(t *testing.T) {
	for older, block := range map[string]time.Duration{"a": 0, "b0100": 2 * timeout} {
		bubble(t, func(w *bubbled) {
			w.acquire("older", older)
			w.inLine()
			w.link.KV = &hanging{older: older}
			w.block.Store(int64(block))
			require.NoError(t, w.Table.Begin(w.ctx(), w.cluster.Revision(), true))
			began := time.Now()
			_, _, err := w.fill(w.ctx(), w.cluster.Revision())
			require.ErrorIs(t, err, table.ErrOlder)
			require.Equal(t, block, time.Since(began))
		})
	}
}

// What a listing has shown before it failed is not all of it.
func TestS3_AListingThatFailsIsNone(t *testing.T) {
	bubble(t, func(w *bubbled) {
		w.acquire("a")
		w.inLine()
		w.link.KV = &hanging{}
		require.NoError(t, w.Table.Begin(w.ctx(), w.cluster.Revision(), true))
		require.ErrorIs(t, w.list(w.ctx(), w.cluster.Revision(), true), context.DeadlineExceeded)
		require.Contains(t, w.known(), "a", "the table drops what a whole listing lacks")
	})
}

// hanging lists many locks, one of them as it was, and nothing more.
type hanging struct {
	clientv3.KV
	older string
}

func (h *hanging) GetStream(ctx context.Context, _ string, _ ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	names := []string{"a"}
	for i := range 2 * batchLocks {
		names = append(names, fmt.Sprintf("b%04d", i))
	}
	var kvs []*mvccpb.KeyValue
	for _, name := range names {
		rev := int64(3)
		if name == h.older {
			rev = 2
		}
		// All have a deadline, so that the table computes when they are due.
		kvs = append(kvs, &mvccpb.KeyValue{Key: []byte(layout.Key(name, "auto_unlock_at")), Value: []byte(etcdtest.Stamp(time.Now())), ModRevision: rev},
			&mvccpb.KeyValue{Key: []byte(layout.Key(name, "uuid")), Value: []byte(name), CreateRevision: rev, ModRevision: rev})
	}
	chunks := make(chan clientv3.RangeStreamResponse, 1)
	chunks <- clientv3.RangeStreamResponse{RangeResponse: &etcdserverpb.RangeResponse{Kvs: kvs}}
	context.AfterFunc(ctx, func() { close(chunks) })
	return chunks, nil
}

// An answer that is missing shows no restore.
func TestACheckThatFailsHalfwayShowsNothing(t *testing.T) {
	t.Parallel()
	w := idle(t)
	w.etcd.Set("a", "uuid", "x")
	deleted, err := w.etcd.Client.Delete(w.ctx(), layout.Key("a", "uuid"))
	require.NoError(t, err)
	there := write{key: layout.Key("a", "uuid"), revision: deleted.Header.Revision, deleted: true}
	require.NoError(t, w.checkMark(w.ctx(), deleted.Header, mark{write: there}))
	kv := w.Client.KV
	for from := range 2 {
		w.Client.KV = &failing{KV: kv, from: from + 1}
		err := w.checkMark(w.ctx(), deleted.Header, mark{write: there})
		require.ErrorIs(t, err, errFailing)
	}
}

// failing is an etcd that answers no read from one on.
type failing struct {
	clientv3.KV
	from, reads int
}

var errFailing = errors.New("no answer")

func (f *failing) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if f.reads++; f.reads >= f.from {
		return nil, errFailing
	}
	return f.KV.Get(ctx, key, opts...)
}
