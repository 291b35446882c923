package etcd

import (
	"context"
	"fmt"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bound gives a deadline to a unary call that has none, since clientv3 waits for a
// connection without limit.
//
// It runs inside the retry interceptor of clientv3, which retries any request after the
// gRPC status DeadlineExceeded while the context of the caller is not done: it would
// send a transaction again although the first may have been executed. Therefore bound
// replaces the status by an error without one, which that interceptor returns at once.
// It does the same with Canceled if the caller did not cancel. The other retries are
// harmless: requests that write (Put, Delete, Txn) are retried only after an auth error,
// which etcd returns before it executes anything. Reads, status, alarms and lease grants
// are also retried after Unavailable.
func bound(o Options) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); !has {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, o.RequestTimeout)
			defer cancel()
		}
		if o.FailFast {
			opts = append(opts, grpc.WaitForReady(false))
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		switch status.Code(err) {
		case codes.DeadlineExceeded:
			return noAnswer(method, err)
		case codes.Canceled:
			if ctx.Err() == nil { // a proxy reset the stream; the request may have been executed
				return fmt.Errorf("no answer from etcd to %s: %w: %s", path.Base(method), context.Canceled, status.Convert(err).Message())
			}
		}
		return err
	}
}

// noAnswer keeps the cause that gRPC knows (a refused connection, a failed handshake),
// which clientv3 would replace by the bare context error.
func noAnswer(method string, err error) error {
	cause := status.Convert(err).Message()
	if cause == context.DeadlineExceeded.Error() {
		return fmt.Errorf("no answer from etcd to %s: %w", path.Base(method), context.DeadlineExceeded)
	}
	return fmt.Errorf("no answer from etcd to %s: %w: %s", path.Base(method), context.DeadlineExceeded, cause)
}
