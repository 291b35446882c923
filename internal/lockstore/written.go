package lockstore

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxWritten limits the keys that WrittenAt returns for a revision.
const maxWritten = 4

// WrittenAt returns the values of keys below a prefix that were created at one of the revisions,
// each of which etcd must still have, with the one before. It asks etcd's index first, so that
// other keys are not read.
func (st Store) WrittenAt(ctx context.Context, prefix string, revisions []int64) (map[int64][][]byte, error) {
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix))
	written := make(map[int64][][]byte)
	for part := range slices.Chunk(revisions, minGets) {
		var gets []clientv3.Op
		for _, r := range part {
			for _, at := range []int64{r - 1, r} {
				gets = append(gets, clientv3.OpGet(prefix, end, clientv3.WithRev(at), clientv3.WithCountOnly()))
			}
		}
		counts, err := st.get(ctx, gets)
		if err != nil {
			return written, err
		}
		for i, r := range part {
			if counts[2*i+1].Count <= counts[2*i].Count {
				continue
			}
			answers, err := st.get(ctx, []clientv3.Op{clientv3.OpGet(prefix, end, clientv3.WithRev(r),
				clientv3.WithMinModRev(r), clientv3.WithMaxModRev(r), clientv3.WithLimit(maxWritten))})
			if err != nil {
				return written, err
			}
			for _, kv := range answers[0].Kvs {
				written[r] = append(written[r], kv.Value)
			}
		}
	}
	return written, nil
}
