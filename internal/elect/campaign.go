package elect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	errDeposed = errors.New("key is gone, or no longer the oldest")
	errUnseen  = errors.New("key could not be read for a whole TTL")
)

// campaign puts our key and sees to it until that fails or ctx is done.
func (t *term) campaign(ctx context.Context) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	hints := make(chan struct{}, 1)
	var beside sync.WaitGroup
	defer func() { cancel(); beside.Wait() }()
	beside.Go(func() { t.watch(ctx, hints) })
	return t.stand(ctx, hints)
}

// stand looks where our key stands at each hint, and at least three times in a TTL.
// A look that fails proves nothing; that all do for a TTL ends the term.
func (t *term) stand(ctx context.Context, hints <-chan struct{}) error {
	seen := time.Now()
	for {
		began := time.Now()
		err := t.look(ctx)
		switch {
		case err == nil:
			seen = began
		case ctx.Err() != nil, errors.Is(err, errDeposed):
			return err
		case time.Since(seen) > t.TTL:
			return fmt.Errorf("%w: %w", errUnseen, err)
		}
		select {
		case <-hints:
		case <-time.After(t.TTL / 3):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enter puts our key: from then on we wait in line.
func (t *term) enter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.RequestTimeout)
	defer cancel()
	resp, err := t.Client.Put(ctx, t.key, t.Identity, clientv3.WithLease(t.lease))
	if err != nil {
		return fmt.Errorf("enter the election: %w", err)
	}
	t.rev = resp.Header.Revision
	return nil
}

// look reads the line up to our key, through a quorum, and begins the reign when
// nobody stands before us.
func (t *term) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.RequestTimeout)
	defer cancel()
	resp, err := t.Client.Get(ctx, t.prefix, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(t.rev),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return fmt.Errorf("read the election: %w", err)
	}
	line := t.line(resp.Kvs)
	if len(line) == 0 || !t.owns(line[len(line)-1]) {
		return errDeposed
	}
	t.saw(string(line[0].Value))
	switch {
	case len(line) == 1:
		t.reign(t)
	case t.reigning.Load() == t:
		return errDeposed
	}
	return nil
}

// owns tells our key from one that somebody put in its place.
func (t *term) owns(kv *mvccpb.KeyValue) bool {
	return string(kv.Key) == t.key && kv.CreateRevision == t.rev
}

// line leaves out the keys of elections whose names begin with ours, such as that
// of /mutexes/a/ beside that of /mutexes/.
func (t *term) line(kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	line := kvs[:0:0]
	for _, kv := range kvs {
		if !strings.Contains(string(kv.Key[len(t.prefix):]), "/") {
			line = append(line, kv)
		}
	}
	return line
}

// watch hints at every deletion in the election until ctx is done. Nothing depends
// on it but how soon we look.
func (t *term) watch(ctx context.Context, hints chan<- struct{}) {
	for ctx.Err() == nil {
		t.follow(ctx, hints)
		_ = pause(ctx, t.TTL/3)
	}
}

// follow hints until the watch ends. The first hint comes when the watch is up, for
// what was deleted before. The watcher is one of its own: a new watch on an old
// stream fails once the stream's token has expired.
func (t *term) follow(ctx context.Context, hints chan<- struct{}) {
	watcher := clientv3.NewWatcher(t.Client)
	defer func() { _ = watcher.Close() }()
	for range watcher.Watch(ctx, t.prefix, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify()) {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
}
