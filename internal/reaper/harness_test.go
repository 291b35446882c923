package reaper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

// suite closes the etcd that most tests share before goleak looks.
type suite struct{ *testing.M }

func (s suite) Run() int {
	code := s.M.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Close(); err != nil {
			return 1
		}
	}
	return code
}

var shared struct {
	once    sync.Once
	cluster *localetcd.Cluster
	client  *clientv3.Client
	err     error
}

// sharedClient is of an etcd that no test may harm.
func sharedClient(t *testing.T) *clientv3.Client {
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if shared.cluster, shared.err = localetcd.Start(ctx, localetcd.Options{UnsafeNoFsync: true}); shared.err == nil {
			shared.client, shared.err = shared.cluster.Client()
		}
	})
	require.NoError(t, shared.err)
	return shared.client
}

// past is long over, by whatever clock runs the tests.
var past = lock.Timestamp(1_700_000_000 * int64(time.Second))

// house is a reaper with all that it needs, and means to look at it.
type house struct {
	*Reaper
	t      *testing.T
	ctx    context.Context
	cli    *clientv3.Client
	kv     *spyKV
	source *fakeSource
	logs   *logs
	delays *delays
}

// houses counts them, so that tests can be repeated.
var houses atomic.Int64

// newHouse is below a prefix of its own.
func newHouse(t *testing.T, cli *clientv3.Client, edits ...func(*Options)) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	h := &house{t: t, ctx: ctx, cli: cli, kv: &spyKV{KV: cli}, source: newFakeSource(), logs: &logs{}, delays: &delays{}}
	layout, err := lock.NewLayout(fmt.Sprintf("/%s %d/", t.Name(), houses.Add(1)))
	require.NoError(t, err)
	o := Options{
		KV: h.kv, Layout: layout, Source: h.source, Rules: Rules{Mode: Enforce, Grace: 2 * time.Second, Tolerance: 2 * time.Second, Settle: 15 * time.Second, StandbyDelay: 5 * time.Second},
		Holds: calm, Signals: fair, Leader: func() bool { return true }, Credit: func(time.Time) time.Duration { return 0 },
		BatchSize: 16, Concurrency: 1, RequestTimeout: 5 * time.Second, Retention: time.Hour,
		Delay: h.delays, Logger: slog.New(slog.NewJSONHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, edit := range edits {
		edit(&o)
	}
	h.Reaper, err = New(o)
	require.NoError(t, err)
	t.Cleanup(h.noLeaks)
	return h
}

// noLeaks makes sure that nothing is kept but for what waits for its event.
func (h *house) noLeaks() {
	h.tally.mu.Lock()
	defer h.tally.mu.Unlock()
	for id, p := range h.tally.open {
		require.True(h.t, p.answered && p.gone == nil, "left open: %v", id)
	}
}

// put writes fields of a lock in one transaction (or, without a name, any keys
// below the prefix) and returns its revision.
func (h *house) put(name string, fields map[string]string) int64 {
	h.t.Helper()
	var ops []clientv3.Op
	for f, v := range fields {
		key := h.Layout.Key(name, f)
		if name == "" {
			key = h.Layout.Prefix() + f
		}
		ops = append(ops, clientv3.OpPut(key, v))
	}
	var rev int64
	for part := range slices.Chunk(ops, 100) {
		resp, err := h.cli.Txn(h.ctx).Then(part...).Commit()
		require.NoError(h.t, err)
		rev = resp.Header.Revision
	}
	return rev
}

// expired writes locks that are long due.
func (h *house) expired(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.put(name, map[string]string{"uuid": "u-" + clip(name), "hostname": "host", "locked_at": past.String(),
			"auto_unlock_at": past.String(), "purpose": "test"})
	}
}

func clip(s string) string { return s[:min(len(s), 20)] }

// keys returns the keys under the prefix, without it, and their leases.
func (h *house) keys() []string {
	h.t.Helper()
	resp, err := h.cli.Get(h.ctx, h.Layout.Prefix(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(h.t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key[len(h.Layout.Prefix()):]))
	}
	return keys
}

// candidate is what a source would give of a lock, as a listing has it.
func (h *house) candidate(name string) Candidate {
	h.t.Helper()
	from, end := h.Layout.Range(name)
	resp, err := h.cli.Get(h.ctx, from, clientv3.WithRange(end))
	require.NoError(h.t, err)
	var b lock.Builder
	for _, kv := range resp.Kvs {
		if n, f, _ := h.Layout.Split(kv.Key); string(n) == name {
			b.Add(lock.KV{Field: lock.ParseField(f), Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease})
		}
	}
	return Candidate{Lock: b.Lock(name), Sight: longSeen, At: time.Now(), Since: past.Time()}
}

// longSeen is of a lock that a listing found ages ago.
var longSeen = lock.Sight{Age: ages, Anchor: -ages}

const ages = 100 * 365 * 24 * time.Hour

// calm are holds that fair signals do not cause.
var calm = HoldRules{Settle: time.Minute, Freshness: time.Minute}

func fair() Signals {
	now := time.Now()
	return Signals{ListedAt: now.Add(-time.Hour), Connected: true, Sign: now, Probed: true}
}

func (h *house) candidates(names ...string) []Candidate {
	h.t.Helper()
	var all []Candidate
	for _, name := range names {
		all = append(all, h.candidate(name))
	}
	return all
}

// handle does what a worker does with locks that it took.
func (h *house) handle(candidates ...Candidate) error {
	w := &worker{Reaper: h.Reaper, requests: h.ctx}
	batch, err := w.readAll(candidates)
	return errors.Join(err, w.handle(h.ctx, batch))
}

// remove handles locks as they are and makes sure that nothing else failed.
func (h *house) remove(names ...string) {
	h.t.Helper()
	require.NoError(h.t, h.handle(h.candidates(names...)...))
}

// removed returns what the counters say for all triggers.
func (h *house) removed() (n int) {
	for _, c := range h.Stats().Removed {
		n += int(c)
	}
	return n
}

func (h *house) failures() map[Reason]uint64 {
	failures := h.Stats().Failures
	for r, n := range failures {
		if n == 0 {
			delete(failures, r)
		}
	}
	return failures
}

// spyKV notes transactions that delete, and runs hooks before them and before
// reads.
type spyKV struct {
	clientv3.KV
	mu     sync.Mutex
	before func()
	// beforeRead runs before each transaction that reads, counted from 1.
	beforeRead func(n int)
	txns       []*spyTxn
	reads      int
}

type spyTxn struct {
	clientv3.Txn
	kv        *spyKV
	compares  []clientv3.Cmp
	then      []clientv3.Op
	otherwise []clientv3.Op
}

func (k *spyKV) Txn(ctx context.Context) clientv3.Txn { return &spyTxn{Txn: k.KV.Txn(ctx), kv: k} }

func (t *spyTxn) If(c ...clientv3.Cmp) clientv3.Txn {
	t.compares, t.Txn = append(t.compares, c...), t.Txn.If(c...)
	return t
}

func (t *spyTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then, t.Txn = append(t.then, ops...), t.Txn.Then(ops...)
	return t
}

func (t *spyTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.otherwise, t.Txn = append(t.otherwise, ops...), t.Txn.Else(ops...)
	return t
}

func (t *spyTxn) Commit() (*clientv3.TxnResponse, error) {
	if !slices.ContainsFunc(t.then, clientv3.Op.IsGet) {
		t.kv.mu.Lock()
		before := t.kv.before
		t.kv.txns = append(t.kv.txns, t)
		t.kv.mu.Unlock()
		if before != nil {
			before()
		}
	} else {
		t.kv.mu.Lock()
		t.kv.reads++
		n, before := t.kv.reads, t.kv.beforeRead
		t.kv.mu.Unlock()
		if before != nil {
			before(n)
		}
	}
	return t.Txn.Commit()
}

func (k *spyKV) sent() []*spyTxn {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.txns)
}

// fakeSource gives what it was fed, and notes what is put back.
type fakeSource struct {
	fed  chan []Candidate
	gone chan []Gone

	mu   sync.Mutex
	back []postponement
	// again has locks that are put back fed again after their delay.
	again bool
	took  map[string]Candidate
	// pressure goes with candidates; told is what went with the last.
	pressure, told Pressure
}

type postponement struct {
	name  string
	token int64
	delay time.Duration
}

func newFakeSource() *fakeSource {
	return &fakeSource{fed: make(chan []Candidate, 10_000), gone: make(chan []Gone), took: make(map[string]Candidate)}
}

func (s *fakeSource) Take(ctx context.Context, _ int) ([]Candidate, Pressure, error) {
	select {
	case c := <-s.fed:
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range c {
			s.took[c[i].Name] = c[i]
		}
		s.told = s.pressure
		return c, s.pressure, nil
	case <-ctx.Done():
		return nil, Pressure{}, ctx.Err()
	}
}

func (s *fakeSource) Pressure(context.Context) (Pressure, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told, nil
}

func (s *fakeSource) Postpone(_ context.Context, name string, token int64, delay time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, postponement{name, token, delay})
	if c, ok := s.took[name]; ok && s.again && delay >= 0 {
		c.Sight, c.At = c.Sight.Later(time.Since(c.At)+delay), time.Now().Add(delay)
		c.Attempts++
		time.AfterFunc(delay, func() { s.fed <- []Candidate{c} })
	}
	return nil
}

func (s *fakeSource) Gone() <-chan []Gone { return s.gone }

func (s *fakeSource) postponed() []postponement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.back)
}

// logs keeps log lines.
type logs struct {
	mu    sync.Mutex
	lines [][]byte
}

func (l *logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, bytes.Clone(line))
	return len(line), nil
}

// with returns the lines that have a message, of a lock if one is given.
func (l *logs) with(t *testing.T, message, name string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []map[string]any
	for _, line := range l.lines {
		var fields map[string]any
		require.NoError(t, json.Unmarshal(line, &fields))
		if fields["msg"] == message && (name == "" || fields["lock"] == name) {
			fields["bytes"] = len(line)
			found = append(found, fields)
		}
	}
	return found
}

const (
	msgRemoving  = message.Removing
	msgWithdrawn = message.Withdrawn
	msgBegins    = message.HoldBegins
	msgEnds      = message.HoldEnds
	msgRemoved   = message.Removed
	msgConflict  = message.Conflict
	msgAmbiguous = message.Ambiguous
	msgCannot    = message.CannotRemove
	msgUnread    = message.CannotRead
)

type delays struct {
	mu   sync.Mutex
	seen []float64
}

func (d *delays) Observe(v float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, v)
}

func (d *delays) all() []float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen)
}

func names(format string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}

// anyRevision is for candidates whose source has seen everything.
const anyRevision = math.MaxInt64
