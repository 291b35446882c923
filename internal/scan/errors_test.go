package scan

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
		{rpctypes.ErrCompacted, ReasonCompacted},
		{rpctypes.ErrGRPCCompacted, ReasonCompacted},
		{rpctypes.ErrNoLeader, ReasonNoLeader},
		{canceled(rpctypes.ErrGRPCNoLeader), ReasonNoLeader},
		{rpctypes.ErrPermissionDenied, ReasonPermission},
		{canceled(rpctypes.ErrGRPCPermissionDenied), ReasonPermission},
		{rpctypes.ErrInvalidAuthToken, ReasonAuth},
		{canceled(rpctypes.ErrGRPCInvalidAuthToken), ReasonAuth},
		{rpctypes.ErrAuthOldRevision, ReasonAuth},
		{canceled(rpctypes.ErrGRPCAuthOldRevision), ReasonAuth},
		{rpctypes.ErrUserEmpty, ReasonAuth},
		{rpctypes.ErrUserNotFound, ReasonAuth},
		{rpctypes.ErrAuthFailed, ReasonAuth},
		{etcd.ErrSilent, ReasonStalled},
		{etcd.ErrEnded, ReasonEnded},
		{errRegressed, ReasonRegressed},
		{context.DeadlineExceeded, ReasonTimeout},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), ReasonTimeout},
		{fmt.Errorf("no answer: %w: latest balancer error: connection error: desc = refused", context.DeadlineExceeded), ReasonDown},
		{rpctypes.ErrTimeout, ReasonDown},
		{rpctypes.ErrLeaderChanged, ReasonDown},
		{status.Error(codes.Unavailable, "connection refused"), ReasonDown},
		{status.Error(codes.ResourceExhausted, "too large"), ReasonOther},
		{errors.New("something"), ReasonOther},
	} {
		t.Run(fmt.Sprintf("%s/%v", c.want, c.err), func(t *testing.T) {
			require.Equal(t, c.want, classify(c.err))
			require.Equal(t, c.want, classify(fmt.Errorf("resync: %w", fmt.Errorf("list: %w", c.err))))
			require.Contains(t, Reasons(), c.want)
		})
	}
}
