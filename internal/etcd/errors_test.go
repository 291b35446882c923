package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// canceled is what the client makes of a watch's cancel reason: the type of
// the server's error is lost (etcd#12385).
func canceled(err error) error {
	return rpctypes.Error(status.Error(codes.FailedPrecondition, err.Error()))
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want Reason
	}{
		{rpctypes.ErrCompacted, Compacted},
		{rpctypes.ErrGRPCCompacted, Compacted},
		{rpctypes.ErrNoLeader, NoLeader},
		{canceled(rpctypes.ErrGRPCNoLeader), NoLeader},
		{rpctypes.ErrPermissionDenied, PermissionDenied},
		{canceled(rpctypes.ErrGRPCPermissionDenied), PermissionDenied},
		{rpctypes.ErrInvalidAuthToken, Auth},
		{canceled(rpctypes.ErrGRPCInvalidAuthToken), Auth},
		{rpctypes.ErrAuthOldRevision, Auth},
		{canceled(rpctypes.ErrGRPCAuthOldRevision), Auth},
		{rpctypes.ErrUserEmpty, Auth},
		{rpctypes.ErrUserNotFound, Auth},
		{rpctypes.ErrAuthFailed, Auth},
		{rpctypes.ErrTooManyOps, TooLarge},
		{rpctypes.ErrGRPCRequestTooLarge, TooLarge},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3 vs. 2)"), TooLarge},
		{rpctypes.ErrTooManyRequests, Busy},
		{rpctypes.ErrNoSpace, NoSpace},
		{rpctypes.ErrCorrupt, Rejected},
		{rpctypes.ErrDuplicateKey, Rejected},
		{rpctypes.ErrEmptyKey, Rejected},
		{ErrSilent, Stalled},
		{ErrEnded, Ended},
		{context.DeadlineExceeded, Timeout},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), Timeout},
		{fmt.Errorf("no answer: %w: latest balancer error: connection error: desc = refused", context.DeadlineExceeded), Unavailable},
		{rpctypes.ErrTimeout, Unavailable},
		{rpctypes.ErrTimeoutDueToLeaderFail, Unavailable},
		{rpctypes.ErrLeaderChanged, Unavailable},
		{status.Error(codes.Unavailable, "connection refused"), Unavailable},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), Unavailable},
		{context.Canceled, Other},
		{errors.New("something"), Other},
	} {
		t.Run(fmt.Sprintf("%s/%v", c.want, c.err), func(t *testing.T) {
			require.Equal(t, c.want, Classify(c.err))
			require.Equal(t, c.want, Classify(fmt.Errorf("resync: %w", fmt.Errorf("list: %w", c.err))))
		})
	}
}

// A request without an answer may have been executed, whatever text a member or a proxy gave before.
func TestNoAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		fmt.Errorf("no answer from etcd to Txn: %w: %w", context.DeadlineExceeded, rpctypes.ErrNoLeader),
		fmt.Errorf("no answer from etcd to Txn: %w: %w", context.Canceled, rpctypes.ErrPermissionDenied),
	} {
		require.NotContains(t, []Reason{NoLeader, PermissionDenied}, Classify(err), "%v", err)
	}
}
