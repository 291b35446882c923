package native

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// List lists a prefix, which ends with a slash. The timeout limits each request.
func List(ctx context.Context, kv clientv3.KV, prefix string, timeout time.Duration, limits Limits, seen Seen) (Listing, error) {
	c := collector{prefix: prefix, limits: limits, seen: seen}
	add := func(page *clientv3.GetResponse) error {
		if c.listing.Revision == 0 {
			c.listing.At, c.listing.Revision = time.Now().UTC(), page.Header.Revision
			if page.Count > int64(limits.Keys) { // of all pages
				return fmt.Errorf("%d keys below %s: at most %d are read", page.Count, prefix, limits.Keys)
			}
		}
		for _, kv := range page.Kvs {
			c.add(string(kv.Key), kv.CreateRevision)
		}
		return nil
	}
	if err := etcd.Pages(ctx, kv, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, timeout, add, clientv3.WithKeysOnly()); err != nil {
		return Listing{}, err
	}
	return c.done(), nil
}
