package lockstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Reason
	}{
		{rpctypes.ErrTooManyOps, ReasonTooLarge},
		{rpctypes.ErrGRPCRequestTooLarge, ReasonTooLarge},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3 vs. 2)"), ReasonTooLarge},
		{rpctypes.ErrTooManyRequests, etcd.Busy},
		{rpctypes.ErrNoSpace, etcd.Rejected},
		{rpctypes.ErrPermissionDenied, etcd.PermissionDenied},
		{fmt.Errorf("explained: %w", rpctypes.ErrPermissionDenied), etcd.PermissionDenied},
		{rpctypes.ErrInvalidAuthToken, etcd.Auth},
		{rpctypes.ErrUserEmpty, etcd.Auth},
		{rpctypes.ErrNoLeader, etcd.NoLeader},
		{rpctypes.ErrTimeout, ReasonAmbiguous},
		{rpctypes.ErrTimeoutDueToLeaderFail, ReasonAmbiguous},
		{rpctypes.ErrLeaderChanged, ReasonAmbiguous},
		{context.DeadlineExceeded, ReasonAmbiguous},
		{context.Canceled, ReasonAmbiguous},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), ReasonAmbiguous},
		{errors.New("whatever"), ReasonAmbiguous},
	} {
		require.Equal(t, c.want, Classify(c.err), "%v", c.err)
		require.Contains(t, Reasons(), c.want)
	}
}
