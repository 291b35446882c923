package records

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
)

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
	for _, of := range []error{lockstore.ErrNoLock, lockstore.ErrOtherUUID, lockstore.ErrRenewed, lockstore.ErrNoUUID, lockstore.ErrUnsteady, lockstore.ErrTooLarge} {
		if errors.Is(err, of) {
			return true
		}
	}
	return lockstore.Classify(err).OfOneKey()
}
