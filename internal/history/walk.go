package history

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Bounds limit what Read reads. All are required.
type Bounds struct {
	// Periods is the maximum number of periods, Renewals that of the renewals of each.
	Periods, Renewals int
	// Time is when the reading ends, with what was found until then.
	Time time.Duration
}

// walk reads who held a lock, from the newest revision backwards. It reads at old revisions
// instead of watching them again, for which etcd would block all its writes (ADR 24). If Time
// ends, the result is truncated. A lock that nobody held has no periods.
func (r Reader) walk(ctx context.Context, name string, b Bounds) (api.History, error) {
	if err := protocol.ValidateName(name); err != nil {
		return api.History{}, err
	}
	limited, cancel := context.WithTimeout(ctx, b.Time)
	defer cancel()
	w := &walk{Store: r.Store, Bounds: b, name: name, uuid: r.Store.Layout.Key(name, protocol.FieldUUID.String()), largest: maxGets}
	clipped := protocol.Clip([]byte(name), protocol.MaxName)
	w.found = api.History{Name: clipped, Periods: []api.Period{}}
	err := w.run(limited)
	if err != nil && (w.found.Revision == 0 || limited.Err() == nil || ctx.Err() != nil) {
		return api.History{}, fmt.Errorf("read the history of lock %q: %w", clipped, err)
	}
	w.found.FromRevision = max(w.at+1, w.oldest)
	w.found.Truncated = w.at >= w.oldest
	w.found.Compacted = w.oldest > 1 && !w.found.Truncated
	w.found.Now = time.Now().UTC()
	return w.found, nil
}

// A request looks at minGets revisions, and at up to maxGets, etcd's default for the operations
// of a transaction, where the lock was not held for long.
const (
	minGets = 16
	maxGets = 128
)

// walk goes back through the revisions.
type walk struct {
	lockstore.Store
	Bounds
	name, uuid string
	found      api.History
	// oldest is the oldest revision that etcd has, at the newest that was not looked at yet.
	oldest, at int64
	// gets is the number of revisions to look at next, largest the maximum that etcd allows.
	gets, largest int
}

func (w *walk) run(ctx context.Context) error {
	now, err := w.Get(ctx, []clientv3.Op{clientv3.OpGet(w.uuid, clientv3.WithCountOnly())})
	if err != nil {
		return err
	}
	w.at, w.gets = now[0].Header.Revision, minGets
	if err := w.findOldest(ctx); err != nil {
		return err
	}
	w.found.Revision = w.at
	for w.at >= w.oldest && len(w.found.Periods) < w.Periods {
		err := w.step(ctx)
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			err = w.findOldest(ctx)
		case err != nil && lockstore.Classify(err) == lockstore.ReasonTooLarge && w.largest > 1:
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
		_, err = w.Get(ctx, []clientv3.Op{w.exists(w.uuid, int64(i)+1)})
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
	answers, err := w.Get(ctx, gets)
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

// period reads the period in which w.at is, and continues before it.
func (w *walk) period(ctx context.Context) error {
	last, err := w.read(ctx, w.at, []protocol.Field{protocol.FieldUUID, protocol.FieldHostname, protocol.FieldOwner, protocol.FieldPurpose,
		protocol.FieldLockedAt, protocol.FieldAliveAt, protocol.FieldAutoUnlockAt})
	if err != nil {
		return err
	}
	since, err := w.since(ctx, last[protocol.FieldUUID])
	if err != nil {
		return err
	}
	p := period(w.lock(last), since)
	if w.at < w.found.Revision {
		if p.Ended, err = w.ended(ctx, w.at+1); err != nil {
			return err
		}
	}
	if err := w.renewals(ctx, &p, last); err != nil {
		return err
	}
	w.found.Periods = append(w.found.Periods, p)
	w.at = min(w.at, since) - 1
	return nil
}

// period is a period as its holder left the lock, which it acquired at a revision.
func period(l protocol.Lock, since int64) api.Period {
	return api.Period{
		Token: l.Token, UUID: l.UUID(), Hostname: l.Hostname(), Owner: l.Owner(), Purpose: l.Text(protocol.FieldPurpose),
		Acquired: api.Moment{Revision: since, At: l.LockedAt().Time()},
		AliveAt:  l.AliveAt().Time(), AutoUnlockAt: l.AutoUnlockAt().Time(), Renewals: []api.Renewal{},
	}
}

// fields are keys of the lock as they were at one revision.
type fields map[protocol.Field]*mvccpb.KeyValue

func (w *walk) read(ctx context.Context, revision int64, asked []protocol.Field) (fields, error) {
	gets := make([]clientv3.Op, len(asked))
	for i, f := range asked {
		gets[i] = clientv3.OpGet(w.Layout.Key(w.name, f.String()), clientv3.WithRev(revision))
	}
	answers, err := w.Get(ctx, gets)
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

// ended returns the end of a period at a revision, as far as etcd shows how the lock was then.
func (w *walk) ended(ctx context.Context, at int64) (*api.Ended, error) {
	end := &api.Ended{Moment: api.Moment{Revision: at}}
	if n := len(w.found.Periods); n > 0 && w.found.Periods[n-1].Acquired.Revision == at {
		end.How = api.EndOverwritten
		return end, nil
	}
	var gets []clientv3.Op
	for f := protocol.FieldUnknown + 1; f < protocol.FieldUUID; f++ {
		gets = append(gets, w.exists(w.Layout.Key(w.name, f.String()), at))
	}
	answers, err := w.Get(ctx, gets)
	for _, a := range answers {
		end.Leftovers += int(a.Count)
	}
	return end, err
}

// renewals reads the renewals of a period, which are the writes of auto_unlock_at after the
// acquisition, backwards from its last fields.
func (w *walk) renewals(ctx context.Context, p *api.Period, last fields) error {
	deadline, since := last[protocol.FieldAutoUnlockAt], p.Acquired.Revision
	if deadline == nil || deadline.ModRevision <= since {
		return nil
	}
	before, err := w.before(ctx, since, last)
	if err != nil {
		return err
	}
	uuid := last[protocol.FieldUUID]
	asked := []protocol.Field{protocol.FieldLockedAt, protocol.FieldAliveAt, protocol.FieldAutoUnlockAt}
	for now := w.lock(last); deadline != nil && deadline.ModRevision > since && len(p.Renewals) < w.Renewals; {
		renewed := now.AliveAt()
		r := api.Renewal{Moment: api.Moment{Revision: deadline.ModRevision, At: renewed.Time()}}
		deadline = nil
		if r.Revision > w.oldest {
			then, err := w.read(ctx, r.Revision-1, asked)
			if err != nil {
				return err
			}
			deadline, then[protocol.FieldUUID] = then[protocol.FieldAutoUnlockAt], uuid
			now = w.lock(then)
			if share, known := verdict.Margin(&now, 0, renewed); known {
				r.Margin = &share
			}
		}
		p.Renewals = append(p.Renewals, r)
	}
	p.MoreRenewals = max(0, last[protocol.FieldAutoUnlockAt].Version-before-int64(len(p.Renewals)))
	return nil
}

// before returns how often auto_unlock_at had been written when the period began, or at the
// oldest revision that etcd has where the period and the key are older.
func (w *walk) before(ctx context.Context, since int64, last fields) (int64, error) {
	switch created := last[protocol.FieldAutoUnlockAt].CreateRevision; {
	case created > since:
		return 0, nil
	case created == since:
		return 1, nil
	}
	then, err := w.read(ctx, max(since, w.oldest), []protocol.Field{protocol.FieldAutoUnlockAt})
	return then[protocol.FieldAutoUnlockAt].GetVersion(), err
}
