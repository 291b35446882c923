package etcd

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

func TestPageLimitFollowsTheSizeOfValues(t *testing.T) {
	t.Parallel()
	page := func(n, size int) []*mvccpb.KeyValue {
		kv := &mvccpb.KeyValue{Value: make([]byte, size)}
		return slices.Repeat([]*mvccpb.KeyValue{kv}, n)
	}
	require.EqualValues(t, 8000, nextLimit(1000, page(1000, 10)), "grows")
	require.EqualValues(t, largePage, nextLimit(largePage, page(largePage, 10)), "up to a bound")
	require.EqualValues(t, 8, nextLimit(500, page(500, 1<<20)), "shrinks to what fits")
	require.EqualValues(t, 1, nextLimit(500, page(1, 100<<20)), "but never to nothing")
	require.EqualValues(t, 64, nextLimit(8, page(8, 0)), "empty values")
}
