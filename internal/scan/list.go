package scan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

type lister struct {
	kv     clientv3.KV
	layout protocol.Layout
	// timeout limits the wait for each part of the answer.
	timeout time.Duration
	// emit receives the locks, and may keep them.
	emit func([]protocol.Lock) error

	// newest is the key with the newest modification.
	newest *mvccpb.KeyValue

	// open are locks of which more keys may come. Up to its capacity there are empty ones.
	open  []openLock
	batch []protocol.Lock
	keys  int
}

// List reads all locks under the prefix at one revision, which it returns. It calls emit with
// parts of them, in no defined order. The timeout limits the wait for each part of the answer.
func List(ctx context.Context, kv clientv3.KV, layout protocol.Layout, timeout time.Duration, emit func([]protocol.Lock) error) (revision int64, err error) {
	h, err := header(ctx, kv, layout, timeout)
	if err != nil {
		return 0, fmt.Errorf("read the current revision: %w", err)
	}
	l := lister{kv: kv, layout: layout, timeout: timeout, emit: emit}
	_, err = l.run(ctx, h.Revision)
	return h.Revision, err
}

// header reads the current revision, with the consent of a quorum. It gets the key that equals
// the prefix, which every role with a permission on the prefix may read.
func header(ctx context.Context, kv clientv3.KV, layout protocol.Layout, timeout time.Duration) (*etcdserverpb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := kv.Get(ctx, layout.Prefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	return resp.Header, nil
}

// openLock is a lock of which more keys may come, since the keys of nested names are between
// its own.
type openLock struct {
	name  string
	build protocol.Builder
}

// batchLocks is the number of locks that are sent to the table at once: enough to amortize the
// cost, and few enough not to block other callers of the table.
const batchLocks = 512

// run lists at revision rev and returns the number of keys.
func (l *lister) run(ctx context.Context, rev int64) (keys int, err error) {
	err = l.stream(ctx, rev)
	if status.Code(err) == codes.Unimplemented {
		// etcd before 3.7
		err = etcd.Pages(ctx, l.kv, l.layout.Prefix(), l.layout.End(), rev, etcd.LargePage, l.timeout, func(page *clientv3.GetResponse) error {
			return l.add(page.Kvs)
		})
	}
	if err != nil {
		return l.keys, fmt.Errorf("list %s at revision %d: %w", l.layout.Prefix(), rev, err)
	}
	if err := l.closeUntil(""); err != nil {
		return l.keys, err
	}
	return l.keys, l.flush()
}

// stream lists by one request with a streamed answer.
func (l *lister) stream(ctx context.Context, rev int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(l.timeout, func() { cancel(context.DeadlineExceeded) })
	defer watchdog.Stop()
	chunks, err := l.kv.GetStream(ctx, l.layout.Prefix(), clientv3.WithRange(l.layout.End()), clientv3.WithRev(rev))
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	// The goroutine of the client ends only when its channel was read until it is closed.
	defer func() {
		cancel(nil)
		for range chunks {
		}
	}()
	for chunk := range chunks {
		if err := chunk.Err(); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		watchdog.Reset(l.timeout)
		if err := l.add(chunk.Kvs); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// add adds keys, which must be in order.
func (l *lister) add(kvs []*mvccpb.KeyValue) error {
	l.keys += len(kvs)
	for _, kv := range kvs {
		if l.newest == nil || kv.ModRevision > l.newest.ModRevision {
			l.newest = kv
		}
		name, key := split(l.layout, kv)
		o, err := l.openFor(name, kv.Key)
		if err != nil {
			return err
		}
		o.build.Add(key)
	}
	return nil
}

// split returns the name of the lock that a key belongs to, and the key for the table.
func split(layout protocol.Layout, kv *mvccpb.KeyValue) (name []byte, key protocol.KV) {
	name, field, valid := layout.Split(kv.Key)
	key = protocol.KV{Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease}
	if valid {
		key.Field = protocol.ParseField(field)
	}
	return name, key
}

// openFor returns the open lock of a key, and closes the locks that can get no more keys. With
// keys in order it is always the last open lock.
func (l *lister) openFor(name, key []byte) (*openLock, error) {
	if n := len(l.open); n > 0 && l.open[n-1].name == string(name) {
		return &l.open[n-1], nil
	}
	if err := l.closeUntil(string(key[len(l.layout.Prefix()):])); err != nil {
		return nil, err
	}
	n := len(l.open)
	if n > 0 && l.open[n-1].name == string(name) {
		return &l.open[n-1], nil
	}
	l.open = slices.Grow(l.open, 1)[:n+1]
	l.open[n].name = string(name)
	return &l.open[n], nil
}

// closeUntil closes the open locks, from the last one, until one whose name is a parent of key.
func (l *lister) closeUntil(key string) error {
	for n := len(l.open) - 1; n >= 0; n-- {
		o := &l.open[n]
		if len(key) > len(o.name) && key[len(o.name)] == '/' && strings.HasPrefix(key, o.name) {
			return nil
		}
		l.open = l.open[:n]
		l.batch = append(l.batch, o.build.Lock(o.name))
		if len(l.batch) == batchLocks {
			if err := l.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lister) flush() error {
	if len(l.batch) == 0 {
		return nil
	}
	batch := l.batch
	l.batch = make([]protocol.Lock, 0, batchLocks)
	return l.emit(batch)
}
