package admin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// unlockMany removes what matches, after a step between the list and the removals. It returns what was reported, by name.
func (w *world) unlockMany(ctx context.Context, match string, between func(api.Selection) error, each func()) (map[string]string, api.Unlocked, error) {
	w.t.Helper()
	outcomes := map[string]string{}
	counts, err := w.UnlockMany(ctx, admin.Filter{Query: api.Query{Match: match}}, api.UnlockMany{Match: match, Reason: "OPS-1"}, func(s api.Selection, unrecorded error) error {
		require.NoError(w.t, unrecorded)
		return between(s)
	}, func(l api.Unlocked) {
		require.Equal(w.t, l.Total, l.Removed+l.Refused+l.Unknown+l.NotTried)
		outcomes[l.Name] = l.Outcome + ": " + l.Error
		each()
	})
	return outcomes, counts, err
}

// Between the list and the removals one lock is renewed, one released, and one taken again under the same uuid. A lock
// that comes and matches stays.
func TestUnlockMany(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, _ *memetcd.Link) {
		hostile := "n/\x1b[2J\nall/\u202egnp"
		for _, name := range []string{"n/a", "n/b", "n/c", "n/d", "n/e/f", hostile, "other"} {
			w.take(name, time.Hour, time.Hour)
		}
		w.Set("n/left", "auto_unlock_at", in(0))
		outcomes, counts, err := w.unlockMany(w.t.Context(), "n/**", func(s api.Selection) error {
			require.Len(t, s.Locks, 6)
			require.Equal(t, 1, s.Left, "nobody holds it")
			w.Set("n/a", "auto_unlock_at", in(2*time.Hour))
			w.Put(clientv3.OpDelete("/mutexes/n/b/", clientv3.WithPrefix()))
			w.Put(clientv3.OpDelete("/mutexes/n/c/", clientv3.WithPrefix()))
			w.take("n/c", time.Hour, time.Hour)
			w.take("n/new", time.Hour, time.Hour)
			return nil
		}, func() {})
		require.EqualError(t, err, "4 of 6 locks removed, 2 refused, 0 unknown as etcd did not answer, 0 not tried")
		require.Equal(t, map[string]string{"n/a": "removed: ", "n/d": "removed: ", "n/e/f": "removed: ", hostile: "removed: ",
			"n/b": "refused: no such lock", "n/c": "refused: the lock is held under another uuid"}, outcomes)
		require.Equal(t, 4, counts.Removed)
		require.Len(t, w.Keys(""), 3*6+1, "n/c, n/new, other, and the field of nobody")
		found := w.records()
		require.Len(t, found, 4)
		for _, kv := range found {
			_, r, err := records.Parse(kv.Value, kv.ModRevision)
			require.NoError(t, err)
			require.Equal(t, []string{admin.Who(), "OPS-1"}, []string{r.Who, r.Reason})
			require.Equal(t, found[0].Lease, kv.Lease, "a lease for each would cost etcd more than the removals")
		}
	})
}

// Nothing is sent to remove a lock unless the user agrees.
func TestUnlockManyThatIsDeclined(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, _ *memetcd.Link) {
		w.take("a", time.Hour, time.Hour)
		no := errors.New("no")
		_, _, err := w.unlockMany(w.t.Context(), "*", func(api.Selection) error { return no }, func() {})
		require.ErrorIs(t, err, no)
		_, _, err = w.unlockMany(w.t.Context(), "b/**", func(api.Selection) error { panic("asked") }, func() {})
		require.EqualError(t, err, "none of the 1 locks under /mutexes/ matches and is held: nothing was removed")
		require.Len(t, w.Keys(""), 6)
	})
}

const many = 5000

func (w *world) takeMany() {
	for i := range many {
		w.Put(clientv3.OpPut(fmt.Sprintf("/mutexes/n/%04d/uuid", i), "u"), clientv3.OpPut(fmt.Sprintf("/mutexes/n/%04d/auto_unlock_at", i), in(time.Hour)))
	}
}

// A replica takes 100 records a second, and etcd has to take renewals: few locks at a time, and 50 a second.
func TestUnlockManyLeavesRoom(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, link *memetcd.Link) {
		w.takeMany()
		began := time.Now()
		_, counts, err := w.unlockMany(w.t.Context(), "n/*", func(s api.Selection) error {
			require.Len(t, s.Locks, many)
			began = time.Now()
			return nil
		}, func() {})
		require.NoError(t, err)
		require.Equal(t, many, counts.Removed)
		require.InDelta(t, 98, time.Since(began).Seconds(), 2)
		require.Empty(t, w.Keys(""))
		require.Len(t, w.records(), many)

		for i := range 80 {
			w.take(fmt.Sprintf("n/%02d", i), time.Hour, time.Hour)
		}
		link.Set(memetcd.Faults{Request: time.Second})
		_, counts, err = w.unlockMany(w.t.Context(), "n/*", func(api.Selection) error {
			began = time.Now()
			return nil
		}, func() {})
		require.NoError(t, err)
		require.Equal(t, 80, counts.Removed)
		require.InDelta(t, 80/8*2+1, time.Since(began).Seconds(), 1, "eight at a time: a read and a transaction each, and once a lease")
	})
}

// All manual unlocks of a process have one pace: three at a time, and a single one, are no faster than one.
func TestUnlocksShareAPace(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, _ *memetcd.Link) {
		for i := range 300 {
			w.take(fmt.Sprintf("n%d/%02d", i%3, i), time.Hour, time.Hour)
		}
		w.take("single", time.Hour, time.Hour)
		began := time.Now()
		var g errgroup.Group
		for i := range 3 {
			g.Go(func() error {
				what := api.UnlockMany{Match: fmt.Sprintf("n%d/*", i), Reason: "OPS-1"}
				_, err := w.UnlockMany(w.t.Context(), admin.Filter{Query: api.Query{Match: what.Match}}, what, func(api.Selection, error) error { return nil }, func(api.Unlocked) {})
				return err // unless it removed all
			})
		}
		require.NoError(w.t, g.Wait())
		_, err := w.Unlock(w.t.Context(), "single", "u-single", "OPS-1", func(admin.Detail, error) error { return nil })
		require.NoError(t, err)
		require.InDelta(t, 201./50, time.Since(began).Seconds(), 0.01, "after the first 100")
	})
}

// etcd stops answering, or the user stops the command, in the middle. What is not known is said, and is little.
func TestUnlockManyStops(t *testing.T) {
	for name, stop := range map[string]func(*memetcd.Link, context.CancelFunc){
		"etcd carries out and does not answer": func(link *memetcd.Link, _ context.CancelFunc) { link.Set(memetcd.Faults{HoldAnswers: true}) },
		"etcd refuses connections": func(link *memetcd.Link, _ context.CancelFunc) {
			link.Set(memetcd.Faults{Refuse: true})
			link.Break()
		},
		"the user": func(_ *memetcd.Link, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world, _ *memetcd.Cluster, link *memetcd.Link) {
				for i := range 300 {
					w.take(fmt.Sprintf("n/%03d", i), time.Hour, time.Hour)
				}
				ctx, cancel := context.WithCancel(w.t.Context())
				defer cancel()
				seen := 0
				_, counts, err := w.unlockMany(ctx, "n/*", func(api.Selection) error { return nil }, func() {
					if seen++; seen == 120 {
						stop(link, cancel)
					}
				})
				require.Error(t, err)
				require.GreaterOrEqual(t, counts.Removed, 100)
				require.LessOrEqual(t, counts.Unknown, 8)
				require.GreaterOrEqual(t, counts.NotTried, 170)
				require.Equal(t, 300, counts.Removed+counts.Refused+counts.Unknown+counts.NotTried)
				gone := 300 - len(w.Keys(""))/6
				require.GreaterOrEqual(t, gone, counts.Removed)
				require.LessOrEqual(t, gone, counts.Removed+counts.Unknown)
				require.Len(t, w.records(), gone, "also of those that are not known")
			})
		})
	}
}

// A holder that was taken for silent, and renews after the list was shown, keeps its lock.
func TestUnlockSelectedComparesTheRevisionOfSilentOnes(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, _ *memetcd.Link) {
		w.take("n/dead", time.Hour, time.Hour)
		w.take("n/alive", time.Hour, time.Hour)
		what := api.UnlockMany{Match: "n/*", Silent: true, Reason: "OPS-1"}
		var outcomes []string
		_, err := w.UnlockMany(w.t.Context(), admin.Filter{Query: api.Query{Match: what.Match}}, what, func(s api.Selection, _ error) error {
			require.Len(t, s.Locks, 2)
			w.Set("n/alive", "status", "42%")
			return nil
		}, func(l api.Unlocked) { outcomes = append(outcomes, l.Name+" "+l.Outcome+l.Error) })
		require.ErrorContains(t, err, "1 of 2 locks removed, 1 refused")
		require.ElementsMatch(t, []string{"n/dead removed", "n/alive refusedthe lock was renewed, or modified otherwise, since it was selected"}, outcomes)
	})
}
