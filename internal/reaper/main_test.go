package reaper_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { etcdtest.Main(m, closeShared) }

// closeShared closes the etcd that most tests share before goleak looks.
func closeShared() error {
	if shared.cluster == nil {
		return nil
	}
	return shared.cluster.Close()
}

var shared struct {
	once    sync.Once
	cluster *localetcd.Cluster
	client  *clientv3.Client
	err     error
	tests   atomic.Int64
}

// sharedClient is of an etcd that no test may harm.
func sharedClient(t *testing.T) *clientv3.Client {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if shared.cluster, shared.err = localetcd.Start(ctx, localetcd.Options{UnsafeNoFsync: true}); shared.err == nil {
			shared.client, shared.err = shared.cluster.Client()
		}
	})
	require.NoError(t, shared.err)
	return shared.client
}

// newEtcd returns an etcd of the test's own and a client of it.
func newEtcd(t *testing.T, o localetcd.Options) (*localetcd.Cluster, *clientv3.Client) {
	t.Helper()
	cluster := etcdtest.Start(t, o).Cluster
	client, err := cluster.Client()
	require.NoError(t, err)
	return cluster, client
}

const (
	// soon is the deadline of what needs nothing but etcd.
	soon = time.Minute
	ages = 100 * 365 * 24 * time.Hour
	// newest is a revision that no key exceeds.
	newest = int64(1<<63 - 1)
	grace  = 2 * time.Second
)

// past is the deadline of most locks here, and before any clock that runs the tests.
var (
	past   = time.Unix(1_700_000_000, 0).UTC()
	expiry = stamp(past)
)

func stamp(t time.Time) string { return protocol.TimestampOf(t).String() }

// harness is a reaper with all that it needs. It runs from the first lock that it is
// given to the end of the test, and keeps nothing then but what waits for its event.
type harness struct {
	*reaper.Reaper
	*spy
	t       *testing.T
	ctx     context.Context
	direct  lockstore.Store // past the spy
	source  *source
	log     *logBuffer
	delay   *delays
	given   int
	started bool
	// ending is done once the reaper was told to end; stop tells it, and waits.
	ending context.Context
	stop   func()
}

// newHarness is on the etcd of a client; nil for one in memory.
func newHarness(t *testing.T, client *clientv3.Client, edits ...func(*reaper.Options)) *harness {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 1_000*soon)
	t.Cleanup(cancel)
	h := &harness{t: t, ctx: ctx, spy: &spy{KVClient: &memory{kvs: make(map[string]*mvccpb.KeyValue)}}, source: newSource(), log: &logBuffer{}, delay: &delays{}}
	if client != nil {
		h.spy.KVClient = clientv3.RetryKVClient(client)
	}
	layout, err := protocol.NewLayout(fmt.Sprintf("/%s %d/", t.Name(), shared.tests.Add(1)))
	require.NoError(t, err)
	h.direct = lockstore.Store{KV: clientv3.NewKVFromKVClient(h.spy.KVClient, client), Layout: layout, RequestTimeout: soon}
	o := reaper.Options{
		Store:  lockstore.Store{KV: clientv3.NewKVFromKVClient(h.spy, client), Layout: layout, RequestTimeout: soon},
		Source: h.source,
		Rules: verdict.Rules{Reaper: config.Reaper{
			Mode: verdict.Enforce, Grace: grace, ClockTolerance: 2 * time.Second, StandbyDelay: 5 * time.Second,
			Settle: time.Minute, Freshness: time.Minute, BatchSize: 16, Concurrency: 1,
		}},
		Signals: well,
		Leader:  func() bool { return true }, Probe: allowing(new(atomic.Int64)),
		Pauses:    pauses(func(string) verdict.Pause { return verdict.Pause{} }),
		Retention: time.Hour, Delay: h.delay, Logger: h.log.logger(),
	}
	if client == nil {
		o.Sleep = sleep
	}
	for _, edit := range edits {
		edit(&o)
	}
	h.Reaper, err = reaper.New(o)
	require.NoError(t, err)
	return h
}

// bubble runs a test of time: it passes only when all goroutines wait, and etcd is in
// memory. The clocks are past all deadlines of the year 2023.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		<-time.After(ages / 4)
		test(t)
	})
}

// sleep is exact where the clock is that of a bubble.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(max(d, time.Millisecond)):
	case <-ctx.Done():
	}
}

// well are signals that cause no hold.
func well() verdict.Signals {
	now := time.Now()
	return verdict.Signals{ListedAt: now.Add(-time.Hour), Connected: true, LastSign: now, Probed: true}
}

func (h *harness) start() {
	if h.started {
		return
	}
	h.started = true
	ctx, cancel := context.WithCancel(h.ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	h.ending, h.stop = ctx, sync.OnceFunc(func() {
		cancel()
		require.NoError(h.t, <-ended)
		_, others := h.Open()
		require.Zero(h.t, others, "attempts that are not finished")
		h.requireOutcomes()
	})
	h.t.Cleanup(h.stop)
}

// requireOutcomes requires that each removal which was announced has one line about its outcome. Other failures have one for
// all locks that end so together.
func (h *harness) requireOutcomes() {
	h.t.Helper()
	outcomes := 0
	for _, msg := range []string{api.LogWithdrawn, api.LogAmbiguous, api.LogRefused, api.LogCannotRemove, api.LogConflict, api.LogRemoved} {
		for _, line := range h.log.with(h.t, msg, "") {
			if strings.Contains(line.text, `"keys_deleted":`) {
				outcomes++
			} else {
				require.Contains(h.t, line.text, `"locks":`)
				require.Equal(h.t, api.LogCannotRemove, msg, "what cannot be sent is not announced")
			}
		}
	}
	require.Len(h.t, h.log.with(h.t, api.LogRemoving, ""), outcomes)
	for _, msg := range []string{api.LogCannotRead, api.LogCannotLog} {
		for _, line := range h.log.with(h.t, msg, "") {
			require.Contains(h.t, line.text, `"locks":`)
		}
	}
	require.Empty(h.t, h.log.with(h.t, "", ""), "lines without a message")
}

// await waits for a condition, also in a bubble.
func (h *harness) await(condition func() bool) {
	h.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(soon); !condition(); <-tick.C {
		require.True(h.t, time.Now().Before(end), "the condition did not hold in time")
	}
}

// give has the source give locks to the reaper, in batches.
func (h *harness) give(due ...table.View) {
	h.t.Helper()
	h.start()
	h.given += len(due)
	for batch := range slices.Chunk(due, h.Rules.BatchSize) {
		h.source.give(slices.Clone(batch)...)
	}
}

// handle gives locks to the reaper and waits until all that it was ever given are
// removed or put back; an orphan that is removed is put back, too.
func (h *harness) handle(due ...table.View) {
	h.t.Helper()
	h.give(due...)
	h.await(func() bool {
		return h.removed()+len(h.source.postponed())-int(h.Stats().Removed[verdict.Orphan]) == h.given
	})
}

func (h *harness) remove(names ...string) {
	h.t.Helper()
	h.handle(h.dues(names...)...)
}

// set writes fields of a lock, given as name, value, name, value: in one transaction
// where they are few.
func (h *harness) set(name string, fields ...string) {
	h.t.Helper()
	var ops []clientv3.Op
	for f := range slices.Chunk(fields, 2) {
		ops = append(ops, clientv3.OpPut(h.direct.Layout.Key(name, f[0]), f[1]))
	}
	h.commit(ops...)
}

func (h *harness) commit(ops ...clientv3.Op) {
	h.t.Helper()
	for part := range slices.Chunk(ops, 100) {
		_, err := h.direct.KV.Txn(h.ctx).Then(part...).Commit()
		require.NoError(h.t, err)
	}
}

// expired writes locks of five keys that are long due.
func (h *harness) expired(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.set(name, "uuid", "u-"+name, "hostname", "host", "locked_at", expiry, "auto_unlock_at", expiry, "purpose", "test")
	}
}

// crowd writes n keys of a value each, by a format of their names below the prefix.
func (h *harness) crowd(format string, n int) {
	h.t.Helper()
	var ops []clientv3.Op
	for _, key := range names(format, n) {
		ops = append(ops, clientv3.OpPut(h.direct.Layout.Prefix()+key, "x"))
	}
	h.commit(ops...)
}

// release is what a client's unlock does: it deletes each of its own keys.
func (h *harness) release(name string) {
	h.t.Helper()
	var ops []clientv3.Op
	for f := protocol.FieldUnknown + 1; f <= protocol.FieldUUID; f++ {
		ops = append(ops, clientv3.OpDelete(h.direct.Layout.Key(name, f.String())))
	}
	h.commit(ops...)
}

// get returns the keys that begin with a text after the prefix.
func (h *harness) get(begin string) []*mvccpb.KeyValue {
	h.t.Helper()
	resp, err := h.direct.KV.Get(h.ctx, h.direct.Layout.Prefix()+begin, clientv3.WithPrefix())
	require.NoError(h.t, err)
	return resp.Kvs
}

// keys returns the keys below the prefix, without it.
func (h *harness) keys() []string {
	h.t.Helper()
	keys := []string{}
	for _, kv := range h.get("") {
		keys = append(keys, string(kv.Key[len(h.direct.Layout.Prefix()):]))
	}
	return keys
}

// due is a lock as the table gives it, which a listing found ages ago.
func (h *harness) due(name string) table.View {
	h.t.Helper()
	var b protocol.Builder
	for _, kv := range h.get(name + "/") {
		if n, f, _ := h.direct.Layout.Split(kv.Key); string(n) == name {
			b.Add(protocol.KV{Field: protocol.ParseField(f), Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease})
		}
	}
	return table.View{Lock: b.Lock(name), Observation: verdict.Observation{Age: ages}, At: time.Now(), Wall: h.Now()}
}

func (h *harness) dues(names ...string) (due []table.View) {
	h.t.Helper()
	for _, name := range names {
		due = append(due, h.due(name))
	}
	return due
}

// dated writes a lock with a deadline and returns it as one that was seen live, of a
// holder whose clock agrees with ours.
func (h *harness) dated(name string, deadline time.Time) table.View {
	h.t.Helper()
	h.set(name, "uuid", "u", "auto_unlock_at", stamp(deadline))
	d := h.due(name)
	d.Observation = verdict.Observation{Measured: true}
	return d
}

// gone shows the reaper deletions, and returns when it has accounted for them.
func (h *harness) gone(gone ...table.Gone) {
	h.start()
	h.source.gone <- gone
	h.source.gone <- nil
}

// putBack is the delay with which the only lock that was put back was.
func (h *harness) putBack() time.Duration {
	h.t.Helper()
	require.Len(h.t, h.source.postponed(), 1)
	return h.source.postponed()[0].delay
}

// removed is what the counters have of all triggers.
func (h *harness) removed() (n int) {
	for _, count := range h.Stats().Removed {
		n += int(count)
	}
	return n
}

// holding are the holds in force.
func (h *harness) holding() map[verdict.Hold]api.Hold {
	found := make(map[verdict.Hold]api.Hold)
	for _, in := range h.Holding() {
		found[in.Hold] = in
	}
	return found
}

func (h *harness) failures() map[lockstore.Reason]uint64 { return h.Stats().Failures }

func names(format string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}
