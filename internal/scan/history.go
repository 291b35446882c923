package scan

import (
	"context"
	"hash/maphash"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// history is what identifies the history of etcd that was seen: a restored etcd
// shows another one.
type history struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen mark
}

// mark is a point of a history.
type mark struct {
	cluster uint64
	// revision is the newest one seen, write the newest write to the prefix.
	revision int64
	write    write
}

// write is one key as a revision wrote it; revision 0 is none.
type write struct {
	key      string
	revision int64
	deleted  bool
	sum      uint64 // of the value
}

func (h *history) mark() mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

// forget is for another history.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = mark{}
}

// saw records a revision, and the newest write to the prefix up to it, nil for none.
func (h *history) saw(cluster uint64, revision int64, kv *mvccpb.KeyValue, deleted bool) mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cluster != 0 {
		h.seen.cluster = cluster
	}
	h.seen.revision = max(h.seen.revision, revision)
	if kv != nil && kv.ModRevision >= h.seen.write.revision {
		h.seen.write = write{key: string(kv.Key), revision: kv.ModRevision, deleted: deleted, sum: h.sum(kv.Value)}
	}
	return h.seen
}

func (h *history) sum(value []byte) uint64 { return maphash.Bytes(h.seed, value) }

// checkHistory reads the current revision and checks that etcd still shows the history
// of a mark: the same cluster, no older revision, and the write that was seen at its
// revision. Where that revision is compacted only a listing can tell.
func (s *Scanner) checkHistory(ctx context.Context, seen mark) (*etcdserverpb.ResponseHeader, error) {
	h, err := header(ctx, s.Client.KV, s.Layout, s.RequestTimeout)
	if err != nil {
		return nil, err
	}
	if seen.cluster != 0 && h.ClusterId != seen.cluster || h.Revision < seen.revision {
		return nil, errRegressed
	}
	if seen.write.revision == 0 {
		return h, nil
	}
	same, err := s.isThere(ctx, seen.write)
	switch {
	case err != nil && rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted):
		return h, nil
	case err != nil:
		return nil, err
	case !same:
		return nil, errRegressed
	}
	return h, nil
}

// isThere reports whether etcd shows a write at its revision.
func (s *Scanner) isThere(ctx context.Context, w write) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.RequestTimeout)
	defer cancel()
	at, err := s.Client.Get(ctx, w.key, clientv3.WithRev(w.revision))
	if err != nil || !w.deleted {
		return err == nil && len(at.Kvs) == 1 && at.Kvs[0].ModRevision == w.revision && s.history.sum(at.Kvs[0].Value) == w.sum, err
	}
	if len(at.Kvs) > 0 {
		return false, nil
	}
	before, err := s.Client.Get(ctx, w.key, clientv3.WithRev(w.revision-1), clientv3.WithKeysOnly())
	return err == nil && len(before.Kvs) == 1, err
}
