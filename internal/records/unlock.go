package records

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Unlocker removes locks for the users of a process. It is safe for concurrent use.
type Unlocker struct {
	Config config.Config
	Client *etcd.Client
	Store  lockstore.Store
	Now    func() time.Time
	pace   *rate.Limiter
}

// NewUnlocker returns the one Unlocker of a process.
func NewUnlocker(c config.Config, client *etcd.Client, store lockstore.Store) Unlocker {
	return Unlocker{c, client, store, time.Now, rate.NewLimiter(PerSecond/2, Burst/10)}
}

// TryRecord returns as refused why etcd would refuse the record of the unlock of a lock, and as err
// why that is not known. etcd checks the right and the space that a put needs also where the
// condition of its transaction never holds. The condition is about a key that the person may read.
func (u Unlocker) TryRecord(ctx context.Context, name string) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.Config.Etcd.RequestTimeout)
	defer cancel()
	prefix := u.Config.AuditKeys()
	never := etcd.Never(u.Store.Layout.Key(name, protocol.FieldUUID.String()))
	_, err = u.Client.Txn(ctx).If(never).Then(clientv3.OpPut(prefix, "")).Commit()
	switch lockstore.Classify(err) {
	case etcd.PermissionDenied, etcd.Rejected:
		return u.Client.Explain(err, etcd.Write, prefix), nil
	}
	return nil, err
}

// Unlock removes a lock for a user, who is user@host, and leaves the record if recorded is set. The
// errors are those of lockstore.Store.Unlock; for ErrOtherUUID, now is the lock as it is held now. If
// the error is ErrAmbiguous, the lock may or may not be removed, and the record is there if it is.
func (u Unlocker) Unlock(ctx context.Context, name string, what api.Unlock, who string, recorded bool) (removed api.Forced, now lockstore.Record, err error) {
	if err := u.pace.Wait(ctx); err != nil {
		return api.Forced{}, lockstore.Record{}, err
	}
	r := &remover{Unlocker: u, who: who, reason: what.Reason, recorded: recorded}
	removed, now, err = r.unlock(ctx, name, lockstore.Held{UUID: what.UUID})
	if r.lease != 0 && err != nil && !errors.Is(err, lockstore.ErrAmbiguous) {
		u.Client.Abandon(ctx, r.lease)
	}
	return removed, now, err
}

// remover removes locks for a user, with one lease for the records of all.
type remover struct {
	Unlocker
	who, reason string
	recorded    bool
	// lease is 0 until the first is removed. Several are only removed concurrently if it is set.
	lease clientv3.LeaseID
}

func (r *remover) unlock(ctx context.Context, name string, held lockstore.Held) (removed api.Forced, now lockstore.Record, err error) {
	trace := r.trace
	if !r.recorded {
		trace = nil
	}
	record, revision, err := r.Store.Unlock(ctx, name, held, trace)
	if err != nil {
		return api.Forced{}, record, err
	}
	removed = record.Removed()
	removed.At, removed.Trigger, removed.Revision = r.Now().UTC(), verdict.Manual, revision
	removed.Fields, removed.MoreFields = record.Shown()
	removed.Who, removed.Reason = r.who, r.reason
	return removed, record, nil
}

func (r *remover) trace(ctx context.Context, removed lockstore.Record) (_ clientv3.Op, err error) {
	if r.lease == 0 {
		if r.lease, err = grant(ctx, r.Client, kept+shared, r.Config.Etcd.RequestTimeout); err != nil {
			return clientv3.Op{}, err
		}
	}
	f := removed.Removed()
	f.At, f.Trigger, f.Who, f.Reason = r.Now().UTC(), verdict.Manual, r.who, r.reason
	// Only this transaction ends this acquisition: a key that is there already was forged.
	return clientv3.OpPut(keyOf(r.Config.AuditKeys(), &f), Encode(r.Config.Prefix, f), clientv3.WithLease(r.lease)), nil
}

// grant returns a lease for records and questions.
func grant(ctx context.Context, client *etcd.Client, ttl, timeout time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	granted, err := client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, fmt.Errorf("get a lease: %w", err)
	}
	return granted.ID, nil
}

// A replica logs at most PerSecond records of what users do, after a first Burst: any client may have written them. The
// manual unlocks of a process stay below that, and are few at a time, so that etcd has time for renewals.
const (
	PerSecond  = 100
	Burst      = 1000
	concurrent = 8
)

// Select returns those of the locks that a bulk unlock can remove, and the digest of what each unlock compares. The
// locks must be in the order of their names.
func Select(locks iter.Seq[api.Lock], silent bool) api.Selection {
	s, digest := api.Selection{Locks: []api.Lock{}}, sha256.New()
	_, _ = fmt.Fprintf(digest, "silent %t\n", silent) // a hash returns no error
	for l := range locks {
		if l.Token == 0 || l.UUID == "" || api.Clipped(l.Name) {
			s.Left++
			continue
		}
		s.Locks = append(s.Locks, l)
		_, _ = fmt.Fprintf(digest, "%q %+v\n", l.Name, heldAs(&l, silent))
	}
	if len(s.Locks) > 0 {
		s.Digest = fmt.Sprintf("%x", digest.Sum(nil))
	}
	return s
}

// heldAs returns what the unlock of a selected lock compares. That of a silent one does not remove it if its
// holder has renewed it since.
func heldAs(l *api.Lock, silent bool) lockstore.Held {
	held := lockstore.Held{UUID: l.UUID, Token: l.Token}
	if silent {
		held.Newest = l.Revision
	}
	return held
}

// UnlockSelected removes selected locks as Unlock does, each if it is still held as it was selected. It calls
// report for each that was tried, one call at a time, and returns the counts. It stops when ctx is done, or etcd
// fails otherwise than for one lock: what has begun ends, within the timeout of a request, and the rest is not tried. The
// counts have an error if there is no lease for the records: then nothing was tried.
func (u Unlocker) UnlockSelected(ctx context.Context, locks []api.Lock, what api.UnlockMany, who string, recorded bool, report func(api.Unlocked)) (counts api.Unlocked) {
	counts.Total, counts.NotTried = len(locks), len(locks)
	r := &remover{Unlocker: u, who: who, reason: what.Reason, recorded: recorded}
	if recorded {
		var err error
		if r.lease, err = grant(ctx, u.Client, kept+shared, u.Config.Etcd.RequestTimeout); err != nil {
			counts.Error = api.ErrorText(err)
			return counts
		}
	}
	begun, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(u.Config.Etcd.RequestTimeout, abort) })()
	next, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(concurrent)
	for _, l := range locks {
		if u.pace.Wait(next) != nil {
			break
		}
		g.Go(func() error {
			if next.Err() != nil {
				return nil
			}
			removed, _, err := r.unlock(begun, l.Name, heldAs(&l, what.Silent))
			mu.Lock()
			defer mu.Unlock()
			if !count(&counts, err) {
				stop()
			}
			line := counts
			line.Name, line.UUID, line.Revision = l.Name, l.UUID, removed.Revision
			report(line)
			counts.Outcome, counts.Error = "", ""
			return nil
		})
	}
	_ = g.Wait() // its functions return none
	if recorded && counts.Removed+counts.Unknown == 0 {
		u.Client.Abandon(ctx, r.lease)
	}
	return counts
}

// count adds the outcome of one unlock, and reports whether the next one may succeed.
func count(c *api.Unlocked, err error) bool {
	c.NotTried--
	if err == nil {
		c.Removed++
		c.Outcome = api.OutcomeRemoved
		return true
	}
	c.Error = api.ErrorText(err)
	if errors.Is(err, lockstore.ErrAmbiguous) {
		c.Unknown++
		c.Outcome = api.OutcomeUnknown
		return false
	}
	c.Refused++
	c.Outcome = api.OutcomeRefused
	ofOneLock := []error{lockstore.ErrNoLock, lockstore.ErrOtherUUID, lockstore.ErrRenewed, lockstore.ErrNoUUID, lockstore.ErrUnsteady, lockstore.ErrTooLarge}
	return slices.ContainsFunc(ofOneLock, func(of error) bool { return errors.Is(err, of) }) || lockstore.Classify(err).OfOneKey()
}

const (
	// questionTTL is how long a question stays, answered or not.
	questionTTL = 10 * time.Second
	// answerTime is how long an answer may take. Where there was a question before, the holder may owe itself a pause of
	// as long, and gets answerSlack more.
	answerTime, answerSlack = 5 * time.Second, time.Second
	// answerInterval is between two looks for it.
	answerInterval = 200 * time.Millisecond
)

// ErrReleased is the error of a question whose lock was released or removed before an answer.
var ErrReleased = errors.New("released or removed while its holder was asked")

// NoAnswer is the error of a question that the holder has not answered in time.
type NoAnswer struct {
	// Renewed is when it last renewed or took the lock, according to its clock; zero if it does not say.
	Renewed time.Time
}

func (e *NoAnswer) Error() string {
	last := "it has never said when it renewed"
	if !e.Renewed.IsZero() {
		last = fmt.Sprintf("last renewed at %s (%s ago, by its clock)", e.Renewed.UTC().Format(time.RFC3339), time.Since(e.Renewed).Round(time.Second))
	}
	return fmt.Sprintf("its process does not answer within %s; %s; a client that does not support questions never answers", answerTime, last)
}

// Ask asks the holder of a lock what it does, and returns nil once its answer is in the lock. by is user@host. The errors
// are those of lockstore.Store.ReadOne, ErrNoUUID, ErrReleased, a *NoAnswer, and those of etcd.
func (u Unlocker) Ask(ctx context.Context, name, by string) error {
	l, err := u.Store.ReadOne(ctx, name)
	switch {
	case err != nil:
		return err
	case l.UUID() == "":
		return lockstore.ErrNoUUID
	}
	asked, within, err := u.question(ctx, name, l.UUID(), by)
	if err != nil {
		return err
	}
	key := func(f protocol.Field) clientv3.Op { return clientv3.OpGet(u.Store.Layout.Key(name, f.String())) }
	for end := time.Now().Add(within); ; {
		now, err := u.Store.Get(ctx, []clientv3.Op{key(protocol.FieldUUID), key(protocol.FieldAnsweredAt)})
		switch late := time.Now().After(end); {
		case err != nil && late:
			return err
		case err != nil: // etcd may answer in time
		case len(now[0].Kvs) == 0 || now[0].Kvs[0].CreateRevision != l.Token:
			return ErrReleased
		case len(now[1].Kvs) > 0 && now[1].Kvs[0].ModRevision > asked:
			return nil
		case late:
			if l, err = u.Store.ReadOne(ctx, name); err != nil {
				return err
			}
			return &NoAnswer{cmp.Or(l.AliveAt(), l.LockedAt()).Time()}
		}
		select {
		case <-time.After(answerInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// question writes one, and returns its revision, and how long its answer may take.
func (u Unlocker) question(ctx context.Context, name, uuid, by string) (revision int64, within time.Duration, err error) {
	lease, err := grant(ctx, u.Client, questionTTL, u.Config.Etcd.RequestTimeout)
	if err != nil {
		return 0, 0, err
	}
	value, _ := json.Marshal(map[string]string{"by": protocol.Clip([]byte(by), MaxText), "at": u.Now().UTC().Format(time.RFC3339)}) // texts
	sending, cancel := context.WithTimeout(ctx, u.Config.Etcd.RequestTimeout)
	defer cancel()
	put, err := u.Client.Put(sending, protocol.QuestionKey(u.Config.AskKeys(), name, uuid), string(value), clientv3.WithLease(lease), clientv3.WithPrevKV())
	if err != nil {
		u.Client.Abandon(ctx, lease)
		return 0, 0, fmt.Errorf("ask the holder: %w", err)
	}
	if within = answerTime; put.PrevKv != nil {
		within += answerSlack
	}
	return put.Header.Revision, within, nil
}
