package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The size of the pages adapts to that of the keys and values. Pages should be large, as for each
// of them the server counts all keys that remain, but not exceed pageBudget. The first is small,
// since the values may be big.
const (
	firstPage  = 16
	largePage  = 20_000
	pageGrowth = 8
	pageBudget = 8 << 20 // bytes
)

// Pages reads the keys from from to end, in order and page by page, at revision rev or, if that is
// 0, at the one of the first page. The timeout limits the wait for each page. It requests half of
// a page that is too big for the server or the client, and ends when add fails.
func Pages(ctx context.Context, kv clientv3.KV, from, end string, rev int64, timeout time.Duration, add func(*clientv3.GetResponse) error,
	options ...clientv3.OpOption,
) error {
	for limit := int64(firstPage); ; {
		of := append(slices.Clone(options), clientv3.WithRange(end), clientv3.WithRev(rev), clientv3.WithLimit(limit))
		page, err := getPage(ctx, kv, from, timeout, of)
		if limit > 1 && ctx.Err() == nil && Code(err) == codes.ResourceExhausted {
			limit /= 2
			continue
		}
		if err != nil {
			return err
		}
		if err := add(page); err != nil || !page.More || len(page.Kvs) == 0 {
			return err
		}
		if rev == 0 {
			rev = page.Header.Revision
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		limit = nextLimit(limit, page.Kvs)
	}
}

func getPage(ctx context.Context, kv clientv3.KV, from string, timeout time.Duration, of []clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return kv.Get(ctx, from, of...)
}

// Code returns the gRPC code of an error, also if it is a rpctypes.EtcdError.
func Code(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}

func nextLimit(limit int64, kvs []*mvccpb.KeyValue) int64 {
	size := 0
	for _, kv := range kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	fits := int64(len(kvs)) * pageBudget / int64(max(size, 1))
	return max(1, min(pageGrowth*limit, fits, largePage))
}
