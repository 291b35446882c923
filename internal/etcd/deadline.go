package etcd

import (
	"context"
	"fmt"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bound gives a unary call without a deadline one of its own: etcd's calls wait for a
// connection, without it for ever.
//
// It runs inside etcd's retry interceptor, which takes a gRPC status DeadlineExceeded
// under a context still alive for a reason to try again, whatever the request: a
// transaction would be sent once more while nobody knows what became of the first.
// So the status is turned into an error that is none; etcd's interceptor returns that
// at once. The same goes for Canceled where it was not we who canceled. Other retries are harmless: requests that write (Put, Delete, Txn) are
// repeated only for an auth error, which etcd gives before it executes anything; reads,
// status, alarms and lease grants also on Unavailable.
func bound(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); !has {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		switch status.Code(err) {
		case codes.DeadlineExceeded:
			return noAnswer(method, err)
		case codes.Canceled:
			if ctx.Err() == nil { // not we: a proxy reset the stream, whatever became of the request
				return fmt.Errorf("no answer from etcd to %s: %w: %s", path.Base(method), context.Canceled, status.Convert(err).Message())
			}
		}
		return err
	}
}

// noAnswer keeps what gRPC knows (a refused connection, a failed handshake), which
// clientv3 would throw away for the bare context error.
func noAnswer(method string, err error) error {
	cause := status.Convert(err).Message()
	if cause == context.DeadlineExceeded.Error() {
		return fmt.Errorf("no answer from etcd to %s: %w", path.Base(method), context.DeadlineExceeded)
	}
	return fmt.Errorf("no answer from etcd to %s: %w: %s", path.Base(method), context.DeadlineExceeded, cause)
}
