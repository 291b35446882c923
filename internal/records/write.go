package records

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// maxTxnBytes limits the size of a transaction, for which etcd has 1.5 MiB by default.
const maxTxnBytes = 1 << 20

// ErrFull is the error of Writer if there are as many records as the daemons read.
var ErrFull = errors.New("there are as many records as replicas read")

// Writer writes the records of automatic removals. Write is called by one goroutine.
type Writer struct {
	Config config.Config
	Client *etcd.Client
	// Full reports whether there are as many records as there may be.
	Full func() bool

	lease   clientv3.LeaseID
	granted time.Time
}

// Write writes the records of removals, each unless there is one already, so that it may be repeated. Those of a
// transaction share a lease. The error is that of the first transaction that failed; written is the number of records
// before it, and later whether etcd may take the rest later, since it did not refuse them.
func (w *Writer) Write(ctx context.Context, removed []api.Forced) (written int, later bool, err error) {
	if w.Full() {
		return 0, false, ErrFull
	}
	for written < len(removed) {
		n, err := w.first(ctx, removed[written:])
		if errors.Is(err, rpctypes.ErrLeaseNotFound) { // revoked, or lost by a restore
			w.lease = 0
			n, err = w.first(ctx, removed[written:])
		}
		if err != nil {
			return written, etcd.Classify(err).Temporary(), w.Client.Explain(err, etcd.ReadWrite, w.Config.AuditKeys())
		}
		written += n
	}
	return written, false, nil
}

// first writes as many of the records as fit into one transaction.
func (w *Writer) first(ctx context.Context, removed []api.Forced) (written int, err error) {
	if err := w.renew(ctx); err != nil {
		return 0, err
	}
	puts := w.puts(removed)
	ctx, cancel := context.WithTimeout(ctx, w.Config.Etcd.RequestTimeout)
	defer cancel()
	_, err = w.Client.Txn(ctx).Then(puts...).Commit()
	return len(puts), err
}

// renew gets another lease where the present one is too old.
func (w *Writer) renew(ctx context.Context) (err error) {
	if w.lease != 0 && time.Since(w.granted) < shared {
		return nil
	}
	w.granted = time.Now() // first: the lease begins later
	w.lease, err = grant(ctx, w.Client, kept+shared, w.Config.Etcd.RequestTimeout)
	return err
}

// puts returns operations that fit into one transaction, for the first of the removals.
func (w *Writer) puts(removed []api.Forced) (puts []clientv3.Op) {
	size := 0
	for i := range removed {
		f := &removed[i]
		key, value := keyOf(w.Config.AuditKeys(), f), Record{Prefix: w.Config.Prefix, When: f.At, Forced: *f}.Encode()
		if size += len(key) + len(value); size > maxTxnBytes && i > 0 {
			break
		}
		absent := []clientv3.Cmp{clientv3.Compare(clientv3.Version(key), "=", 0)}
		puts = append(puts, clientv3.OpTxn(absent, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(w.lease))}, nil))
	}
	return puts
}
