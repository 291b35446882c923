package scan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]Reason{
		errRegressed:               ReasonRegressed,
		table.ErrOlder:             ReasonRegressed,
		etcd.ErrSilent:             etcd.Stalled,
		rpctypes.ErrCompacted:      etcd.Compacted,
		rpctypes.ErrNoSpace:        etcd.Other,
		rpctypes.ErrTooManyOps:     etcd.Other,
		rpctypes.ErrUserNotFound:   etcd.Auth,
		rpctypes.ErrLeaderChanged:  etcd.Unavailable,
		rpctypes.ErrGRPCEmptyKey:   etcd.Other,
		rpctypes.ErrGRPCFutureRev:  etcd.Other,
		rpctypes.ErrGRPCTimeout:    etcd.Unavailable,
		rpctypes.ErrGRPCUserEmpty:  etcd.Auth,
		rpctypes.ErrGRPCNoLeader:   etcd.NoLeader,
		rpctypes.ErrGRPCAuthFailed: etcd.Auth,
	} {
		require.Equal(t, want, classify(fmt.Errorf("check: %w", err)), "%v", err)
		require.Contains(t, Reasons(), want)
	}
}
