package lockstore

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Bounds limit what History reads. All are required.
type Bounds struct {
	// Periods is the maximum number of periods, Renewals that of the renewals of each.
	Periods, Renewals int
	// Time is when the reading ends, with what was found until then.
	Time time.Duration
}

// Past is what etcd's old revisions tell about who held a lock.
type Past struct {
	// Revision is the newest revision that was read, From the oldest.
	Revision, From int64
	// Compacted reports whether etcd has no older revision than From because it was compacted,
	// Truncated whether etcd has older ones.
	Compacted, Truncated bool
	// Periods are the newest first.
	Periods []Period
}

// Period is the time during which the uuid key existed with one value.
type Period struct {
	// Lock is the lock at the end of the period, with the fields of the protocol that say who
	// held it, for what and when.
	protocol.Lock
	// Since is the revision of the acquisition. Until is that of the end, 0 if it lasts.
	Since, Until int64
	// Overwritten reports whether another uuid replaced this one.
	Overwritten bool
	// Leftovers is the number of fields of the protocol that stayed without a uuid.
	Leftovers int
	// Renewals are the newest, the newest first; More is the number of older ones.
	Renewals []Renewal
	More     int64
}

// History reads who held a lock, from the newest revision backwards. It reads at old revisions
// instead of watching them again, for which etcd would block all its writes (ADR 24). If Time
// ends, the result is truncated. A lock that nobody held has no periods.
func (st Store) History(ctx context.Context, name string, b Bounds) (Past, error) {
	if err := protocol.ValidateName(name); err != nil {
		return Past{}, err
	}
	limited, cancel := context.WithTimeout(ctx, b.Time)
	defer cancel()
	w := &walk{Store: st, Bounds: b, name: name, uuid: st.Layout.Key(name, protocol.FieldUUID.String()), largest: maxGets}
	err := w.run(limited)
	if err != nil && (w.past.Revision == 0 || limited.Err() == nil || ctx.Err() != nil) {
		return Past{}, fmt.Errorf("read the history of lock %q: %w", protocol.Clip([]byte(name), MaxName), err)
	}
	w.past.From = max(w.at+1, w.oldest)
	w.past.Truncated = w.at >= w.oldest
	w.past.Compacted = w.oldest > 1 && !w.past.Truncated
	return w.past, nil
}

// A request looks at minGets revisions, and at up to maxGets, etcd's default for the operations
// of a transaction, where the lock was not held for long.
const (
	minGets = 16
	maxGets = 128
)

// walk goes back through the revisions.
type walk struct {
	Store
	Bounds
	name, uuid string
	past       Past
	// oldest is the oldest revision that etcd has, at the newest that was not looked at yet.
	oldest, at int64
	// gets is the number of revisions to look at next, largest the maximum that etcd allows.
	gets, largest int
}

func (w *walk) run(ctx context.Context) error {
	now, err := w.get(ctx, []clientv3.Op{clientv3.OpGet(w.uuid, clientv3.WithCountOnly())})
	if err != nil {
		return err
	}
	w.at, w.gets = now[0].Header.Revision, minGets
	if err := w.findOldest(ctx); err != nil {
		return err
	}
	w.past.Revision = w.at
	for w.at >= w.oldest && len(w.past.Periods) < w.Periods {
		err := w.step(ctx)
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			err = w.findOldest(ctx)
		case err != nil && Classify(err) == ReasonTooLarge && w.largest > 1:
			w.largest /= 2
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findOldest finds the oldest revision that etcd has. It is after w.at if all were compacted.
func (w *walk) findOldest(ctx context.Context) (err error) {
	w.oldest = 1 + int64(sort.Search(int(w.at), func(i int) bool {
		if err != nil {
			return true
		}
		_, err = w.get(ctx, []clientv3.Op{w.exists(w.uuid, int64(i)+1)})
		if errors.Is(err, rpctypes.ErrCompacted) {
			err = nil
			return false
		}
		return true
	}))
	return err
}

// exists asks whether a key existed, which etcd answers from its index.
func (w *walk) exists(key string, revision int64) clientv3.Op {
	return clientv3.OpGet(key, clientv3.WithRev(revision), clientv3.WithCountOnly())
}

// step looks at some revisions, and reads the period that they show.
func (w *walk) step(ctx context.Context) error {
	n := min(int64(w.gets), int64(w.largest), w.at-w.oldest+1)
	gets := make([]clientv3.Op, n)
	for i := range gets {
		gets[i] = w.exists(w.uuid, w.at-int64(i))
	}
	answers, err := w.get(ctx, gets)
	if err != nil {
		return err
	}
	for i, a := range answers {
		if a.Count > 0 {
			w.at, w.gets = w.at-int64(i), minGets
			return w.period(ctx)
		}
	}
	w.at, w.gets = w.at-n, min(2*w.gets, maxGets)
	return nil
}

// period reads the period in which w.at is, and goes on to before it.
func (w *walk) period(ctx context.Context) error {
	var p Period
	last, err := w.read(ctx, w.at, protocol.HolderFields())
	if err != nil {
		return err
	}
	if p.Since, err = w.since(ctx, last[protocol.FieldUUID]); err != nil {
		return err
	}
	p.Lock = w.lock(last)
	if w.at < w.past.Revision {
		p.Until = w.at + 1
		if err := w.ended(ctx, &p); err != nil {
			return err
		}
	}
	if err := w.renewals(ctx, &p, last); err != nil {
		return err
	}
	w.past.Periods = append(w.past.Periods, p)
	w.at = min(w.at, p.Since) - 1
	return nil
}

// fields are keys of the lock as they were at one revision.
type fields map[protocol.Field]*mvccpb.KeyValue

// read reads fields at a revision.
func (w *walk) read(ctx context.Context, revision int64, asked []protocol.Field) (fields, error) {
	gets := make([]clientv3.Op, len(asked))
	for i, f := range asked {
		gets[i] = clientv3.OpGet(w.Layout.Key(w.name, f.String()), clientv3.WithRev(revision))
	}
	answers, err := w.get(ctx, gets)
	if err != nil {
		return nil, err
	}
	found := make(fields)
	for i, a := range answers {
		for _, kv := range a.Kvs {
			found[asked[i]] = kv
		}
	}
	return found, nil
}

func (w *walk) lock(of fields) protocol.Lock {
	var b protocol.Builder
	for f, kv := range of {
		b.Add(protocol.KV{Field: f, Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease})
	}
	return b.Lock(w.name)
}

// since returns the revision at which a uuid was put. A holder may have put its own again. A uuid
// that was overwritten is taken never to come back.
func (w *walk) since(ctx context.Context, uuid *mvccpb.KeyValue) (int64, error) {
	first := max(uuid.CreateRevision, w.oldest)
	if uuid.Version == 1 || first > uuid.ModRevision {
		return uuid.CreateRevision, nil
	}
	var err error
	after := sort.Search(int(uuid.ModRevision-first), func(i int) bool {
		var then fields
		if err == nil {
			then, err = w.read(ctx, first+int64(i), []protocol.Field{protocol.FieldUUID})
		}
		return err != nil || string(then[protocol.FieldUUID].GetValue()) == string(uuid.Value)
	})
	if after == 0 {
		return uuid.CreateRevision, err
	}
	return first + int64(after), err
}

// ended finds out how the period was when it ended.
func (w *walk) ended(ctx context.Context, p *Period) error {
	if n := len(w.past.Periods); n > 0 && w.past.Periods[n-1].Since == p.Until {
		p.Overwritten = true
		return nil
	}
	var gets []clientv3.Op
	for f := protocol.FieldUnknown + 1; f < protocol.FieldUUID; f++ {
		gets = append(gets, w.exists(w.Layout.Key(w.name, f.String()), p.Until))
	}
	answers, err := w.get(ctx, gets)
	for _, a := range answers {
		p.Leftovers += int(a.Count)
	}
	return err
}

// Renewal is a write of auto_unlock_at after the acquisition.
type Renewal struct {
	Revision int64
	// At is the alive_at that was written with it, 0 if there was none.
	At protocol.Timestamp
	// Before has the uuid and the times of the lock as they were before, and is empty if that is
	// not known.
	Before protocol.Lock
}

// renewals reads the renewals of a period backwards from its last fields.
func (w *walk) renewals(ctx context.Context, p *Period, last fields) error {
	deadline := last[protocol.FieldAutoUnlockAt]
	if deadline == nil || deadline.ModRevision <= p.Since {
		return nil
	}
	before, err := w.before(ctx, p, last)
	if err != nil {
		return err
	}
	uuid := last[protocol.FieldUUID]
	asked := []protocol.Field{protocol.FieldLockedAt, protocol.FieldAliveAt, protocol.FieldAutoUnlockAt}
	for now := w.lock(last); deadline != nil && deadline.ModRevision > p.Since && len(p.Renewals) < w.Renewals; {
		r := Renewal{Revision: deadline.ModRevision, At: now.AliveAt()}
		deadline = nil
		if r.Revision > w.oldest {
			then, err := w.read(ctx, r.Revision-1, asked)
			if err != nil {
				return err
			}
			deadline, then[protocol.FieldUUID] = then[protocol.FieldAutoUnlockAt], uuid
			now = w.lock(then)
			r.Before = now
		}
		p.Renewals = append(p.Renewals, r)
	}
	p.More = max(0, last[protocol.FieldAutoUnlockAt].Version-before-int64(len(p.Renewals)))
	return nil
}

// before returns how often auto_unlock_at had been written when the period began, or at the
// oldest revision that etcd has where the period and the key are older.
func (w *walk) before(ctx context.Context, p *Period, last fields) (int64, error) {
	switch created := last[protocol.FieldAutoUnlockAt].CreateRevision; {
	case created > p.Since:
		return 0, nil
	case created == p.Since:
		return 1, nil
	}
	then, err := w.read(ctx, max(p.Since, w.oldest), []protocol.Field{protocol.FieldAutoUnlockAt})
	return then[protocol.FieldAutoUnlockAt].GetVersion(), err
}
