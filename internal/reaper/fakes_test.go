package reaper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// spy counts the reaper's transactions, and runs hooks before them.
type spy struct {
	etcdserverpb.KVClient
	// before runs before each transaction that deletes, onRead before each that reads.
	before func(ctx context.Context)
	onRead func()
	// timeout bounds transactions that delete; 0 is for as long as all requests.
	timeout time.Duration

	mu          sync.Mutex
	reads, sent int
}

func (s *spy) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	reads := r.Success[0].GetRequestRange() != nil
	s.mu.Lock()
	before := s.before
	if reads {
		s.reads++
	} else {
		s.sent++
	}
	s.mu.Unlock()
	if reads {
		if s.onRead != nil {
			s.onRead()
		}
		return s.KVClient.Txn(ctx, r, opts...)
	}
	if before != nil {
		before(ctx)
	}
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	return s.KVClient.Txn(ctx, r, opts...)
}

// hook sets before while the reaper runs.
func (s *spy) hook(before func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *spy) transactions() (reads, deletions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads, s.sent
}

// memory is an etcd for tests of time, in which nothing else is tested: compares hold.
type memory struct {
	etcdserverpb.KVClient
	mu       sync.Mutex
	kvs      map[string]*mvccpb.KeyValue
	revision int64
}

func (m *memory) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision++
	return m.txn(r), ctx.Err()
}

func (m *memory) Range(_ context.Context, r *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.in(r), nil
}

func (m *memory) txn(r *etcdserverpb.TxnRequest) *etcdserverpb.TxnResponse {
	resp := &etcdserverpb.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: m.revision}, Succeeded: true}
	for _, op := range r.Success {
		out := &etcdserverpb.ResponseOp{}
		if put := op.GetRequestPut(); put != nil {
			if m.kvs == nil {
				m.kvs = make(map[string]*mvccpb.KeyValue)
			}
			m.kvs[string(put.Key)] = &mvccpb.KeyValue{Key: put.Key, Value: put.Value, CreateRevision: m.revision, ModRevision: m.revision}
			out.Response = &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: &etcdserverpb.PutResponse{}}
		} else if get := op.GetRequestRange(); get != nil {
			out.Response = &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: m.in(get)}
		} else if nested := op.GetRequestTxn(); nested != nil {
			out.Response = &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: m.txn(nested)}
		} else if del := op.GetRequestDeleteRange(); del != nil {
			found := m.in(&etcdserverpb.RangeRequest{Key: del.Key, RangeEnd: del.RangeEnd})
			for _, kv := range found.Kvs {
				delete(m.kvs, string(kv.Key))
			}
			out.Response = &etcdserverpb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &etcdserverpb.DeleteRangeResponse{Deleted: found.Count}}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

func (m *memory) in(r *etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
	resp := &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: m.revision}}
	for _, key := range slices.Sorted(maps.Keys(m.kvs)) {
		if key == string(r.Key) || key > string(r.Key) && key < string(r.RangeEnd) {
			resp.Kvs = append(resp.Kvs, m.kvs[key])
			resp.Count++
		}
	}
	return resp
}

// source gives what it was given, and keeps what is put back.
type source struct {
	due  chan []table.Due
	gone chan []table.Gone

	mu       sync.Mutex
	back     []postponement
	took     map[string]table.Due
	takers   int
	pressure verdict.Pressure
	// again has it give locks again after the delay with which they were put back.
	again bool
}

type postponement struct {
	name  string
	token int64
	delay time.Duration
}

func newSource() *source {
	return &source{due: make(chan []table.Due, 1_000), gone: make(chan []table.Gone), took: make(map[string]table.Due)}
}

func (s *source) Take(ctx context.Context, _ int) (table.Batch, error) {
	s.mu.Lock()
	s.takers++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.takers--
		s.mu.Unlock()
	}()
	select {
	case due := <-s.due:
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, d := range due {
			s.took[d.Name] = d
		}
		return table.Batch{Due: due, Pressure: s.pressure}, nil
	case <-ctx.Done():
		return table.Batch{}, ctx.Err()
	}
}

// Pressure is none before locks are taken: only what comes with them counts then.
func (s *source) Pressure(context.Context) (p verdict.Pressure, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.took) > 0 {
		p = s.pressure
	}
	return p, nil
}

func (s *source) Postpone(_ context.Context, name string, token int64, delay time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, postponement{name, token, delay})
	if d, taken := s.took[name]; taken && s.again && delay >= 0 {
		d.Observation, d.At = d.Observation.Later(time.Since(d.At)+delay), time.Now().Add(delay)
		d.Attempts++
		time.AfterFunc(delay, func() { s.due <- []table.Due{d} })
	}
	return nil
}

func (s *source) Gone() <-chan []table.Gone { return s.gone }

func (s *source) postponed() []postponement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.back)
}

// waiting is how many workers wait for locks: none that waits at the gate.
func (s *source) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takers
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
