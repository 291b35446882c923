package etcdtest

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
)

// Stamp formats a time as clients of protocol 1 do, to the millisecond.
func Stamp(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
}

// Lock returns the writes of a lock that is acquired now: uuid ("u-" and the name),
// hostname (worker-1), owner (billing), locked_at, alert_at and auto_unlock_at. fields are
// pairs of a name and a value that add to these fields or replace them.
func (e *Etcd) Lock(name string, alert, unlock time.Time, fields ...string) (ops []clientv3.Op) {
	all := map[string]string{
		"uuid": "u-" + name, "hostname": "worker-1", "owner": "billing",
		"locked_at": Stamp(time.Now()), "alert_at": Stamp(alert), "auto_unlock_at": Stamp(unlock),
	}
	for field := range slices.Chunk(fields, 2) {
		all[field[0]] = field[1]
	}
	for field, value := range all {
		ops = append(ops, clientv3.OpPut(e.Prefix+name+"/"+field, value))
	}
	return ops
}

// Renew sets auto_unlock_at and alive_at of a lock that was acquired by Lock. It fails the
// test if the lock has been removed.
func (e *Etcd) Renew(name string, alive, unlock time.Time) {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	from := e.Prefix + name + "/"
	resp, err := e.Client.Txn(ctx).If(clientv3.Compare(clientv3.Value(from+"uuid"), "=", "u-"+name)).
		Then(clientv3.OpPut(from+"auto_unlock_at", Stamp(unlock)), clientv3.OpPut(from+"alive_at", Stamp(alive))).Commit()
	require.NoError(e.t, err)
	require.True(e.t, resp.Succeeded, "%s was taken from its living holder", name)
}

// Set writes fields of a lock, given as pairs of a name and a value, in one transaction if
// there are at most 120. It returns the revision.
func (e *Etcd) Set(name string, fields ...string) int64 {
	e.t.Helper()
	var ops []clientv3.Op
	for field := range slices.Chunk(fields, 2) {
		ops = append(ops, clientv3.OpPut(e.Prefix+name+"/"+field[0], field[1]))
	}
	return e.Put(ops...)
}

// Put commits operations in transactions of up to 120, several at a time, and returns the
// newest revision.
func (e *Etcd) Put(ops ...clientv3.Op) int64 {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(16)
	chunks := slices.Collect(slices.Chunk(ops, 120))
	revisions := make([]int64, len(chunks))
	for i, chunk := range chunks {
		all.Go(func() error {
			resp, err := e.Client.Txn(ctx).Then(chunk...).Commit()
			for lost(err) {
				resp, err = e.Client.Txn(ctx).Then(chunk...).Commit()
			}
			if err == nil {
				revisions[i] = resp.Header.Revision
			}
			return err
		})
	}
	require.NoError(e.t, all.Wait())
	return slices.Max(revisions)
}

// lost reports whether a stall of the members made etcd give up a request, as it does where the leader
// changes meanwhile.
func lost(err error) bool {
	refused, is := errors.AsType[rpctypes.EtcdError](err)
	return is && refused.Code() == codes.Unavailable
}

// Keys returns the keys under Prefix that begin with start, without Prefix and in order.
func (e *Etcd) Keys(start string) []string {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	resp, err := e.Client.Get(ctx, e.Prefix+start, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(e.t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key[len(e.Prefix):]))
	}
	return keys
}
