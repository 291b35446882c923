package scan

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// history is what identifies the state of etcd that was seen: after a restore it differs.
type history struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen mark
	// doubts are the marks after which etcd may have been restored, as the watch was down or had
	// stalled, and which have not been checked since.
	doubts []mark
}

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

// cluster returns the id of the cluster that was seen; 0 for none.
func (h *history) cluster() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen.cluster
}

// doubt marks the current position unverified; call it before reading from an etcd that may have
// been restored. The position stays unverified until a check succeeds: what is seen from now on says
// nothing about it.
func (h *history) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Twice, as the first may be that of a check which has begun. What is seen only grows.
	if n := len(h.doubts); n < 2 || h.doubts[n-2] != h.seen {
		h.doubts = append(h.doubts, h.seen)
	}
}

func (h *history) doubted() []mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubts = slices.Compact(h.doubts)
	return slices.Clone(h.doubts)
}

// checked is called where etcd has shown the first n doubts.
func (h *history) checked(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubts = slices.Delete(h.doubts, 0, n)
}

// forget drops all that was seen of an etcd that has been restored.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen, h.doubts = mark{}, nil
}

// saw records a revision, and the newest write to the prefix up to it, nil for none. It
// returns the newest revision seen.
func (h *history) saw(cluster uint64, revision int64, kv *mvccpb.KeyValue, deleted bool) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cluster != 0 {
		h.seen.cluster = cluster
	}
	h.seen.revision = max(h.seen.revision, revision)
	if kv != nil && kv.ModRevision >= h.seen.write.revision {
		h.seen.write = write{key: string(kv.Key), revision: kv.ModRevision, deleted: deleted, sum: h.sum(kv.Value)}
	}
	return h.seen.revision
}

func (h *history) sum(value []byte) uint64 { return maphash.Bytes(h.seed, value) }

// checkHistory reads the current revision and checks that etcd still shows the history
// of all doubts. Only maintain calls it during a watch, and Run otherwise.
func (s *Scanner) checkHistory(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	doubts := s.history.doubted()
	h, err := header(ctx, s.Client.KV, s.Layout, s.RequestTimeout)
	if err != nil {
		return nil, err
	}
	for _, seen := range doubts {
		if err := s.checkMark(ctx, h, seen); err != nil {
			return nil, err
		}
	}
	s.history.checked(len(doubts))
	return h, nil
}

// checkMark checks that etcd shows the history of a mark: the same cluster, no older
// revision, and the write that was seen at its revision. Where that revision is
// compacted only a listing can tell.
func (s *Scanner) checkMark(ctx context.Context, h *etcdserverpb.ResponseHeader, seen mark) error {
	if seen.cluster != 0 && h.ClusterId != seen.cluster || h.Revision < seen.revision {
		return errRegressed
	}
	if seen.write.revision == 0 {
		return nil
	}
	same, err := s.isThere(ctx, seen.write)
	switch {
	case etcd.Classify(err) == etcd.Compacted:
		return nil
	case err != nil:
		return err
	case !same:
		return errRegressed
	}
	return nil
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
