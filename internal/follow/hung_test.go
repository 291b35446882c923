package follow_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/follow"
)

// silent is a stream that shows nothing.
type silent struct{ grpc.ClientStream }

func (s silent) RecvMsg(any) error {
	<-s.Context().Done()
	return s.Context().Err()
}

// A listing alone would be out of date for the freshness.
func TestAWatchThatNeverBeginsIsNotInView(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	mute := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		if err == nil && method == "/etcdserverpb.Watch/Watch" {
			return silent{s}, nil
		}
		return s, err
	}
	w := start(t, e, e.Connect(func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, grpc.WithChainStreamInterceptor(mute)) }),
		func(o *follow.Options) { o.Freshness = time.Second })
	etcdtest.Eventually(t, func() bool { return w.Status().Err != nil })
	w.put("a", "1")
	began := time.Now()
	etcdtest.Eventually(t, func() bool {
		require.False(t, w.Status().InView)
		return time.Since(began) > 4*w.Freshness && len(w.shown()) > 0
	}, "it is listed again and again")
	require.True(t, w.Status().Listed)
	require.Equal(t, []string{"+a=1"}, w.shown())
}

// What is listed again does not stay in view while the listing hangs.
func TestAListingThatHangsIsNotInView(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	var hung atomic.Bool
	gate := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if hung.Load() {
			<-ctx.Done()
		}
		return next(ctx, method, req, reply, cc, opts...)
	}
	w := start(t, e, e.Connect(func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(gate)) }),
		func(o *follow.Options) { o.RequestTimeout = time.Hour })
	long := strings.Repeat("k", maxSize+1)
	w.put(long, "")
	etcdtest.Eventually(t, func() bool { return w.Status().Omitted && w.Status().InView })
	hung.Store(true)
	w.remove(long) // there is room for what was omitted, so it is listed again
	w.inView(false)
	hung.Store(false)
}
