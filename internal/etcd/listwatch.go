package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// Loop lists and watches, again and again.
type Loop struct {
	// List lists, and returns the watch that continues from the revision of the listing.
	List func(context.Context) (Watch, error)
	// Failed is called with why the listing or the watch ended. Its own error ends the loop.
	Failed func(context.Context, error) error
}

// errRelist ends a watch that has not failed: the keys are to be listed again.
var errRelist = errors.New("list again")

// Run lists and watches until ctx is done, and then returns nil, or until Failed returns an error,
// which it returns. It pauses after each failure by Backoff, which starts again after a watch that
// lasted longer than its Silence, and not at all if the revision was compacted: etcd is healthy.
func (l Loop) Run(ctx context.Context) error {
	for failures := 1; ; failures++ {
		healthy, err := l.session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the failure of a session that was stopped
		}
		if err := l.Failed(ctx, err); err != nil {
			return err
		}
		if healthy {
			failures = 1
		}
		switch {
		case errors.Is(err, errRelist):
			failures = 0
			err = Backoff(ctx, 1)
		case Classify(err) == Compacted:
			err = nil
		default:
			err = Backoff(ctx, failures)
		}
		if err != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

func (l Loop) session(ctx context.Context) (healthy bool, err error) {
	w, err := l.List(ctx)
	if err != nil {
		return false, err
	}
	began := time.Now()
	err = w.Run(ctx)
	return time.Since(began) > w.Silence, err
}

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Backoff waits after the failure with that number, from 1, in a row: the pause doubles from
// minBackoff to maxBackoff, of which jitter takes up to a half. It returns the error of ctx if that
// is done before.
func Backoff(ctx context.Context, failures int) error {
	pause := min(minBackoff<<min(failures-1, 10), maxBackoff)
	select {
	case <-time.After(pause/2 + rand.N(pause/2)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Watch is a watch that fails where it may miss writes.
type Watch struct {
	Client *clientv3.Client
	// Key and Options are those of clientv3.Watcher. The watch starts at the revision of a listing
	// rather than after it: one that starts after the current revision gets no progress notice.
	Key     string
	Options []clientv3.OpOption
	// Silence is the longest time without a response.
	Silence time.Duration
	// Each is called with each response. Its error ends the watch.
	Each func(context.Context, clientv3.WatchResponse) error
	// Opened is called for each stream, with its number from 1. The client library resumes a watch
	// by itself: where etcd was restored, the second stream may have missed writes. Its error ends
	// the watch.
	Opened func(streams int64) error
	// Progress is the pause after a request for a progress notice; nil for a quarter of Silence.
	Progress func() time.Duration
	// During runs during the watch; nil for nothing. It asks for progress notices by the function
	// that it gets. Its error ends the watch.
	During func(context.Context, func(context.Context) error) error
}

// Run watches until the watch fails or ctx is done, and returns the reason.
func (w Watch) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	var opened atomic.Int64
	// Not that of the client: a new watch on an old stream fails once the stream's token has expired (etcd#17623).
	watcher := clientv3.NewWatchFromWatchClient(countedStreams{pb.NewWatchClient(w.Client.ActiveConnection()), func() {
		if err := w.Opened(opened.Add(1)); err != nil {
			cancel(err)
		}
	}}, w.Client)
	// The timer also limits the call of Watch, which waits for the server.
	silence := time.AfterFunc(w.Silence, func() { cancel(ErrSilent) })
	var joined sync.WaitGroup
	defer func() {
		silence.Stop()
		cancel(nil)
		// Close never returns where etcd refuses the watch in the same instant (etcd's client v3.7.3).
		go watcher.Close()
		joined.Wait()
	}()
	responses := watcher.Watch(ctx, w.Key, w.Options...)
	joined.Go(func() { w.askProgress(ctx, watcher) })
	if w.During != nil {
		joined.Go(func() {
			if err := w.During(ctx, watcher.RequestProgress); err != nil {
				cancel(err)
			}
		})
	}
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
			if err := w.Each(ctx, r); err != nil {
				return err
			}
			silence.Reset(w.Silence)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// askProgress asks for progress notices until ctx is done. The call blocks while the stream
// reconnects. The context must be the watch's own: etcd's client keys its streams by it.
func (w Watch) askProgress(ctx context.Context, watcher clientv3.Watcher) {
	for watcher.RequestProgress(ctx) == nil || ctx.Err() == nil {
		pause := w.Silence / 4
		if w.Progress != nil {
			pause = w.Progress()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// countedStreams calls opened for each stream that it opens.
type countedStreams struct {
	pb.WatchClient
	opened func()
}

func (c countedStreams) Watch(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[pb.WatchRequest, pb.WatchResponse], error) {
	stream, err := c.WatchClient.Watch(ctx, opts...)
	if err == nil {
		c.opened()
	}
	return stream, err
}

// The size of the pages adapts to that of the keys and values. Pages should be large, as for each
// of them the server counts all keys that remain, but not exceed pageBudget. The first is small,
// since the values may be big.
const (
	firstPage  = 16
	pageGrowth = 8
	pageBudget = 8 << 20 // bytes
	// LargePage is a maximum for Pages where values are small, or not read.
	LargePage = 20_000
	// SmallPage is the one where they may be large: a page of small values tells nothing of the next.
	SmallPage = firstPage
)

// ErrEnough ends Pages without an error where add returns it.
var ErrEnough = errors.New("enough keys")

// Pages reads the keys from from to end, in order and page by page, at revision rev or, if that is
// 0, at the one of the first page. The timeout limits the wait for each page. It requests half of
// a page that is too big for the server or the client, and ends when add fails. A page has at most
// most keys.
func Pages(ctx context.Context, kv clientv3.KV, from, end string, rev, most int64, timeout time.Duration, add func(*clientv3.GetResponse) error,
	options ...clientv3.OpOption,
) error {
	for limit := int64(firstPage); ; {
		of := append(slices.Clone(options), clientv3.WithRange(end), clientv3.WithRev(rev), clientv3.WithLimit(limit))
		limited, cancel := context.WithTimeout(ctx, timeout)
		page, err := kv.Get(limited, from, of...)
		cancel()
		if limit > 1 && ctx.Err() == nil && Code(err) == codes.ResourceExhausted {
			limit /= 2
			continue
		}
		if err != nil {
			return err
		}
		switch err := add(page); {
		case errors.Is(err, ErrEnough):
			return nil
		case err != nil, !page.More, len(page.Kvs) == 0:
			return err
		}
		if rev == 0 {
			rev = page.Header.Revision
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		limit = min(nextLimit(limit, page.Kvs), most)
	}
}

func nextLimit(limit int64, kvs []*mvccpb.KeyValue) int64 {
	size := 0
	for _, kv := range kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	fits := int64(len(kvs)) * pageBudget / int64(max(size, 1))
	return max(1, min(pageGrowth*limit, fits))
}
