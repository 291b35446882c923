// Package records keeps a record of each removed lock in etcd for a day: what was removed, when, why
// and by whom. It also removes locks for users, and says who may.
//
// Guaranteed: a lock is removed for a user only while it is held under the given uuid, whole, in one
// transaction, which also writes the record. Encode and Parse bound everything, whatever the lock
// contains and whoever wrote the record; a record that Parse returns is valid UTF-8. A name of the
// web configuration file was authenticated against the file as it is at the time of the request,
// whatever checked the request before.
//
// Not guaranteed: that the holder of a removed lock has stopped; that a record is true, since any
// client with the right to write it can, or that its text is safe to print; that a header was
// written by the proxy. No other client may be able to connect, or the file must authenticate the
// proxy, whose name is then added.
package records

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// kept is how long a record stays at least, and shared for how long one lease is given to the records of
	// automatic removals. A lease for each would cost etcd more than the removals.
	kept   = 24 * time.Hour
	shared = time.Hour
	// MaxBytes is the maximum size of a record in etcd.
	MaxBytes = 32 << 10
	// maxAutomatic is that of an automatic removal, of which there may be very many.
	maxAutomatic = 8 << 10
	// maxCounted is the maximum number of removals that a brake counts.
	maxCounted = 100
	// MaxText is the maximum size of each text of a record outside its fields, in bytes.
	MaxText = protocol.MaxName
)

// keyOf returns the key of the record of a removal. That of a release is another: a replica with a slow clock takes a removal
// for one, and may be the first to say so.
func keyOf(prefix string, f *api.Forced) string {
	if f.Trigger == verdict.Ended {
		return protocol.RecordKey(prefix, f.Name, -f.Revision)
	}
	return protocol.RecordKey(prefix, f.Name, cmp.Or(f.Token, f.Revision))
}

// Encode returns the record of a removal, the value of its key, in JSON: the lock with the fields as in the log, the prefix of
// the locks, since deployments may share the place of their records, and when, according to the clock of the host that
// removed the lock. It omits the last fields where they would exceed the limit.
func Encode(prefix string, f api.Forced) string {
	f.Who, f.Reason, f.By = protocol.Clip([]byte(f.Who), MaxText), protocol.Clip([]byte(f.Reason), MaxText), ""
	limit := MaxBytes
	if automatic(&f) {
		limit = maxAutomatic
	}
	for {
		// Texts and the present time can be encoded. The revision of a manual unlock is that of the transaction that writes
		// the record, which is not known yet.
		text, _ := json.Marshal(struct {
			Prefix string    `json:"prefix"`
			When   time.Time `json:"when"`
			api.Forced
			At       *time.Time `json:"at,omitempty"`
			Revision int64      `json:"revision,omitempty"`
		}{Prefix: prefix, When: f.At, Forced: f, Revision: f.Revision})
		if len(text) <= limit || len(f.Fields) == 0 {
			return string(text)
		}
		f.Fields = f.Fields[:len(f.Fields)-1]
		f.MoreFields++
	}
}

func automatic(f *api.Forced) bool { return f.Trigger == verdict.Expiry || f.Trigger == verdict.Orphan }

// Parse returns the removal in a record, the value of a key that was written at a revision, and the prefix of its lock.
func Parse(value []byte, written int64) (prefix string, f api.Forced, err error) {
	if len(value) > MaxBytes {
		return "", f, fmt.Errorf("%d bytes: a record has at most %d", len(value), MaxBytes)
	}
	var r struct {
		Prefix string
		When   time.Time
		api.Forced
	}
	err = json.Unmarshal(value, &r)
	if err == nil {
		err = protocol.ValidateName(r.Name)
	}
	r.At, r.By = r.When.UTC(), api.Other
	if err == nil {
		err = check(&r.Forced, written)
	}
	if err != nil {
		return "", f, errors.New("not a record: " + protocol.Clip([]byte(err.Error()), MaxText)) // it may quote the value
	}
	switch {
	case r.Trigger == verdict.Ended: // the count of what was before the lock of the token, or before the record
		r.Revision = min(cmp.Or(r.Token, written), written)
	case !automatic(&r.Forced):
		// What it does not say is not taken from whoever wrote it.
		r.Trigger, r.Revision, r.Replica, r.Verdict = verdict.Manual, written, "", nil
	}
	bound(&r.Forced)
	return r.Prefix, r.Forced, nil
}

func bound(f *api.Forced) {
	texts := []*string{&f.Name, &f.UUID, &f.Hostname, &f.Owner, &f.PID, &f.Replica, &f.Who, &f.Reason}
	if v := f.Verdict; v != nil {
		texts = append(texts, &v.Policy, &v.Pause)
	}
	for _, s := range texts {
		*s = protocol.Clip([]byte(*s), MaxText)
	}
	f.Counted = slices.Clone(f.Counted[max(0, len(f.Counted)-maxCounted):]) // without the rest, which a forged one has
	if f.Fields == nil {
		f.Fields = []api.Field{}
	}
}

// check refuses what no daemon writes, and what the log never has: in a log line one of two fields of the same name would
// replace the other.
func check(f *api.Forced, written int64) error {
	if _, err := f.At.MarshalText(); err != nil { // in UTC the year may be none that JSON has
		return fmt.Errorf("when: %w", err)
	}
	switch {
	case f.Trigger != "" && f.Trigger != verdict.Manual && f.Trigger != verdict.Ended && !automatic(f):
		return fmt.Errorf("trigger is %q", protocol.Clip([]byte(f.Trigger), protocol.MaxName))
	case automatic(f) && (f.Revision <= 0 || f.Revision >= written):
		return fmt.Errorf("revision is %d, and it was written at %d", f.Revision, written)
	case f.MoreFields < 0:
		return fmt.Errorf("more_fields is %d", f.MoreFields)
	}
	named := make(map[string]bool, len(f.Fields))
	for _, field := range f.Fields {
		name := protocol.Clip([]byte(field.Name), protocol.MaxName)
		if named[field.Name] {
			return fmt.Errorf("two fields have the name %q", name)
		}
		if field.TruncatedFrom < 0 {
			return fmt.Errorf("truncated_from_bytes of field %q is %d", name, field.TruncatedFrom)
		}
		named[field.Name] = true
	}
	return nil
}

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
	const maxTxnBytes = 1 << 20 // limits the size of a transaction, for which etcd has 1.5 MiB by default
	size := 0
	for i := range removed {
		f := &removed[i]
		key, value := keyOf(w.Config.AuditKeys(), f), Encode(w.Config.Prefix, *f)
		if size += len(key) + len(value); size > maxTxnBytes && i > 0 {
			break
		}
		absent := []clientv3.Cmp{clientv3.Compare(clientv3.Version(key), "=", 0)}
		puts = append(puts, clientv3.OpTxn(absent, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(w.lease))}, nil))
	}
	return puts
}
