package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// NewWatcher returns a watcher for one watch, which calls opened for each stream that it opens:
// the client library resumes a watch by itself. A watch needs a watcher of its own: a new watch
// on an old stream fails once the stream's token has expired (etcd#17623). Do not wait for its
// Close, which never returns where etcd refuses the watch in the same instant (etcd's client
// v3.7.3).
func NewWatcher(c *clientv3.Client, opened func()) clientv3.Watcher {
	streams := countedStreams{pb.NewWatchClient(c.ActiveConnection()), opened}
	return clientv3.NewWatchFromWatchClient(streams, c)
}

var (
	// ErrSilent is the error of a watch that shows nothing for too long.
	ErrSilent = errors.New("no event and no progress notice from the watch")
	// ErrEnded is the error of a watch that ends without an error of etcd.
	ErrEnded = errors.New("watch closed by the server")
)

// Watch is a watch that fails where it may miss writes.
type Watch struct {
	Client *clientv3.Client
	// Key and Options are those of clientv3.Watcher. The watch starts at the revision of a listing
	// rather than after it: one that starts after the current revision gets no progress notice.
	Key     string
	Options []clientv3.OpOption
	// Silence is the longest time without a response.
	Silence time.Duration
	// Resumed is the error if the client library resumes the watch: where etcd was restored, it may
	// have missed writes.
	Resumed error
}

// Run calls each for each response until the watch fails or ctx is done, and returns the reason.
func (w Watch) Run(ctx context.Context, each func(clientv3.WatchResponse)) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	var streams atomic.Int64
	watcher := NewWatcher(w.Client, func() {
		if streams.Add(1) > 1 {
			cancel(w.Resumed)
		}
	})
	// The timer also limits the call of Watch, which waits for the server.
	silence := time.AfterFunc(w.Silence, func() { cancel(ErrSilent) })
	var joined sync.WaitGroup
	defer func() {
		silence.Stop()
		cancel(nil)
		go watcher.Close() // which may never return
		joined.Wait()
	}()
	responses := watcher.Watch(ctx, w.Key, w.Options...)
	joined.Go(func() { AskProgress(ctx, watcher, func() time.Duration { return w.Silence / 4 }) })
	for {
		select {
		case r, ok := <-responses:
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !ok:
				return ErrEnded
			case r.Err() != nil:
				return fmt.Errorf("watch: %w", r.Err())
			}
			each(r)
			silence.Reset(w.Silence)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AskProgress asks for progress notices until ctx is done, with a pause after each request. The
// call blocks while the stream reconnects. The context must be the watch's own: etcd's client
// keys its streams by it.
func AskProgress(ctx context.Context, w clientv3.Watcher, pause func() time.Duration) {
	for w.RequestProgress(ctx) == nil || ctx.Err() == nil {
		select {
		case <-time.After(pause()):
		case <-ctx.Done():
			return
		}
	}
}

type countedStreams struct {
	pb.WatchClient
	opened func()
}

// Watch implements pb.WatchClient.
func (c countedStreams) Watch(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[pb.WatchRequest, pb.WatchResponse], error) {
	stream, err := c.WatchClient.Watch(ctx, opts...)
	if err == nil {
		c.opened()
	}
	return stream, err
}
