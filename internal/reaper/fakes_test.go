package reaper_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// spy counts the reaper's transactions, and runs hooks before them.
type spy struct {
	etcdserverpb.KVClient
	// before runs before each transaction that deletes, beforeRead before each that reads.
	before     func(ctx context.Context)
	beforeRead func()
	// connecting runs while one that deletes waits for a connection.
	connecting func()
	// read, if set, runs before each transaction that reads, and may fail it; answer runs
	// after it.
	read   func(ctx context.Context, r *etcdserverpb.TxnRequest) error
	answer func(ctx context.Context, r *etcdserverpb.TxnResponse) error
	// fails, if set, is the error of transactions that delete. timeout bounds them; 0 is for as long as all requests.
	fails       error
	timeout     time.Duration
	reads, sent atomic.Int32
}

func (s *spy) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	if len(r.Success) > 0 && r.Success[0].GetRequestRange() != nil {
		if s.reads.Add(1); s.beforeRead != nil {
			s.beforeRead()
		}
		if s.read != nil {
			if err := s.read(ctx, r); err != nil {
				return nil, err
			}
		}
		resp, err := s.KVClient.Txn(ctx, r, opts...)
		if err == nil && s.answer != nil {
			err = s.answer(ctx, resp)
		}
		return resp, err
	}
	if s.connecting != nil {
		s.connecting()
	}
	if err := etcd.Departs(ctx); err != nil { // as connections do
		return nil, err
	}
	if s.sent.Add(1); s.before != nil {
		s.before(ctx)
	}
	if s.fails != nil {
		return nil, s.fails
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.timeout, ages))
	defer cancel()
	return s.KVClient.Txn(ctx, r, opts...)
}

// lead is that of the probes here.
const lead = 10 * time.Millisecond

// sound is a probe that is always good, unless a function says otherwise.
type sound struct {
	allowance verdict.Allowance
	good      func() time.Time
	await     func(ctx context.Context, since time.Time) error
	begun     atomic.Int32
}

func allowing(d *atomic.Int64) *sound {
	return &sound{allowance: func(int64, time.Time, bool) (deadline, patience time.Duration) {
		return time.Duration(d.Load()), time.Duration(d.Load())
	}}
}

func (s *sound) Begin()              { s.begun.Add(1) }
func (s *sound) Lead() time.Duration { return lead }

func (s *sound) Allowance(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration) {
	return s.allowance(written, learned, stamped)
}

func (s *sound) Good() time.Time {
	if s.good == nil {
		return time.Now()
	}
	return s.good()
}

func (s *sound) Await(ctx context.Context, since time.Time) error {
	if s.await == nil {
		return nil
	}
	return s.await(ctx, since)
}

// pauses are those of some locks, of which none is in etcd.
type pauses func(name string) verdict.Pause

func (p pauses) For(name string) verdict.Pause { return p(name) }
func (p pauses) Newest() int64                 { return 0 }

// pausesOfOthers are pauses up to a revision, which concern no lock here.
type pausesOfOthers int64

func (pausesOfOthers) For(string) verdict.Pause { return verdict.Pause{} }
func (p pausesOfOthers) Newest() int64          { return int64(p) }

// memory is an etcd for tests of time, and of nothing else: all compares hold.
type memory struct {
	etcdserverpb.KVClient
	mu       sync.Mutex
	kvs      map[string]*mvccpb.KeyValue
	revision int64
}

func (m *memory) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	m.revision++
	return m.txn(r), nil
}

func (m *memory) Range(_ context.Context, r *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.in(r.Key, r.RangeEnd), nil
}

func (m *memory) txn(r *etcdserverpb.TxnRequest) *etcdserverpb.TxnResponse {
	resp := &etcdserverpb.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: m.revision}, Succeeded: true}
	for _, op := range r.Success {
		out := &etcdserverpb.ResponseOp{}
		switch op := op.Request.(type) {
		case *etcdserverpb.RequestOp_RequestPut:
			put := op.RequestPut
			m.kvs[string(put.Key)] = &mvccpb.KeyValue{Key: put.Key, Value: put.Value, CreateRevision: m.revision, ModRevision: m.revision}
		case *etcdserverpb.RequestOp_RequestRange:
			out.Response = &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: m.in(op.RequestRange.Key, op.RequestRange.RangeEnd)}
		case *etcdserverpb.RequestOp_RequestTxn:
			out.Response = &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: m.txn(op.RequestTxn)}
		case *etcdserverpb.RequestOp_RequestDeleteRange:
			found := m.in(op.RequestDeleteRange.Key, op.RequestDeleteRange.RangeEnd)
			for _, kv := range found.Kvs {
				delete(m.kvs, string(kv.Key))
			}
			out.Response = &etcdserverpb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &etcdserverpb.DeleteRangeResponse{Deleted: int64(len(found.Kvs))}}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

func (m *memory) in(from, end []byte) *etcdserverpb.RangeResponse {
	resp := &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: m.revision}}
	for _, key := range slices.Sorted(maps.Keys(m.kvs)) {
		if key == string(from) || key > string(from) && key < string(end) {
			resp.Kvs = append(resp.Kvs, m.kvs[key])
		}
	}
	return resp
}

// source gives what it was given, and keeps what is put back.
type source struct {
	due  chan []table.View
	gone chan []table.Gone
	// signal has a value for each batch in due. waits reports whether the reaper waits for one, and
	// not at the gate.
	signal chan struct{}
	waits  atomic.Bool

	mu   sync.Mutex
	back []postponement
	// slow are the locks that were put back as slow.
	slow []string
	// again has it give locks again after the delay with which they were put back.
	again bool
}

type postponement struct {
	name  string
	token int64
	delay time.Duration
}

func newSource() *source {
	return &source{due: make(chan []table.View, 1_000), signal: make(chan struct{}, 1_000), gone: make(chan []table.Gone)}
}

func (s *source) give(due ...table.View) {
	s.due <- due
	s.signal <- struct{}{}
}

func (s *source) Due() <-chan struct{} {
	s.waits.Store(true)
	return s.signal
}

func (s *source) Take(context.Context, int) ([]table.View, error) {
	s.waits.Store(false)
	select {
	case due := <-s.due:
		return due, nil
	default:
		return nil, nil
	}
}

func (s *source) Postpone(_ context.Context, d table.View, delay time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, postponement{d.Name, d.Token, delay})
	if d.Slow {
		s.slow = append(s.slow, d.Name)
	}
	if s.again && delay >= 0 {
		passed := time.Since(d.At) + delay
		d.Observation, d.At, d.Wall = d.Observation.Later(passed), d.At.Add(passed), d.Wall.Add(passed)
		time.AfterFunc(delay, func() { s.give(d) })
	}
	return nil
}

func (s *source) Gone() <-chan []table.Gone { return s.gone }

func (s *source) postponed() []postponement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.back)
}

func (s *source) slowOnes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.slow)
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu    sync.Mutex
	lines [][]byte
}

func (l *logBuffer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, bytes.Clone(line))
	return len(line), nil
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// logged is a line of the log.
type logged struct {
	Lock, UUID, Hold, Reason string
	KeysDeleted              int64 `json:"keys_deleted"`
	Revision                 int64
	Lasted                   time.Duration
	Verdict                  json.RawMessage
	Record                   map[string]any
	text                     string
}

// with returns the lines that have a message, of a lock if one is given.
func (l *logBuffer) with(t *testing.T, message, name string) (found []logged) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.lines {
		line := struct {
			Msg string
			logged
		}{}
		require.NoError(t, json.Unmarshal(text, &line))
		if line.text = string(text); line.Msg == message && (name == "" || line.Lock == name) {
			found = append(found, line.logged)
		}
	}
	return found
}

// one returns the only line that has a message, of a lock.
func (l *logBuffer) one(t *testing.T, message, name string) logged {
	t.Helper()
	found := l.with(t, message, name)
	require.Len(t, found, 1)
	return found[0]
}

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
