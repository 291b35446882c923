package history

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// enough are bounds that no test here reaches.
var enough = Bounds{Periods: 100, Renewals: 100, Time: etcdtest.Soon}

func TestHistoryOfFieldsThatWereDeleted(t *testing.T) {
	w := newWorld(t)
	since := w.acquire("u", 60)
	w.renew(1, 61)
	w.Put(clientv3.OpDelete(w.key("a", "auto_unlock_at")))
	third := w.renew(3, 63)
	require.Equal(t, []int64{third}, revisions(w.history(enough).Periods[0].Renewals), "those before are not known")
	w.Put(clientv3.OpDelete(w.key("a", "auto_unlock_at")))
	until := w.Put(clientv3.OpDelete(w.key("a", "uuid")))
	last := w.history(enough).Periods[0]
	require.Equal(t, []int64{since, until, 3 + 1}, []int64{last.Acquired.Revision, last.Ended.Revision, int64(last.Ended.Leftovers)})
	require.Empty(t, last.Renewals)
	require.True(t, last.AutoUnlockAt.IsZero())
}

func revisions(renewals []api.Renewal) (all []int64) {
	for _, r := range renewals {
		all = append(all, r.Revision)
	}
	return all
}

// A uuid with a lease is deleted by etcd itself.
func TestHistoryOfALockWithALease(t *testing.T) {
	w := newWorld(t)
	lease, err := w.Client.Grant(t.Context(), 600)
	require.NoError(t, err)
	since := w.Put(clientv3.OpPut(w.key("a", "uuid"), "u", clientv3.WithLease(lease.ID)))
	_, err = w.Client.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	got := w.history(enough).Periods
	require.Len(t, got, 1)
	require.Equal(t, []int64{since, since + 1}, []int64{got[0].Acquired.Revision, got[0].Ended.Revision})
}

func TestHistoryIsBounded(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.acquire(fmt.Sprint(i), 60)
		for range 7 {
			w.renew(1, 61)
		}
		w.release()
	}
	p := w.history(Bounds{Periods: 2, Renewals: 3, Time: etcdtest.Soon})
	require.Len(t, p.Periods, 2)
	require.True(t, p.Truncated)
	require.False(t, p.Compacted)
	require.Equal(t, p.Periods[1].Acquired.Revision, p.FromRevision)
	for i, period := range p.Periods {
		require.Equal(t, fmt.Sprint(4-i), period.UUID)
		require.Len(t, period.Renewals, 3)
		require.EqualValues(t, 4, period.MoreRenewals)
	}
	require.True(t, w.history(Bounds{Periods: 5, Time: etcdtest.Soon}).Truncated)
}

// What was found when the time ends is the result; an end that the caller wanted is an error.
func TestHistoryEndsWithItsTime(t *testing.T) {
	w := newWorld(t)
	w.acquire("u", 60)
	w.release()
	for range 3 * maxGets {
		w.Set("b", "x", "x")
	}
	stop := func() {}
	w.afterRead = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
		if len(r.Success) == maxGets {
			stop()
			return context.DeadlineExceeded
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop = cancel
	_, err := w.Read(ctx, "a", enough)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the caller has gone")
	_, err = w.Read(t.Context(), "a", enough)
	require.ErrorIs(t, err, context.DeadlineExceeded, "etcd is too slow")

	limited := Bounds{Periods: 1, Time: 5 * time.Second} // enough for what comes before
	w.afterRead = func(ctx context.Context, r *etcdserverpb.TxnRequest) error {
		if len(r.Success) == maxGets {
			<-ctx.Done() // etcd is slow
			return ctx.Err()
		}
		return nil
	}
	p := w.history(limited)
	require.Empty(t, p.Periods)
	require.True(t, p.Truncated)
	require.Greater(t, p.Revision, p.FromRevision)
}

func TestHistoryWhileEtcdIsCompacted(t *testing.T) {
	w := newWorldOn(t, etcdtest.Start(t, localetcd.Options{}))
	w.acquire("gone", 60)
	w.release()
	second := w.acquire("second", 60)
	for range 200 {
		w.renew(1, 61)
	}
	w.release()
	newest := w.Set("b", "x", "x")
	compactAt := int64(0)
	w.beforeRead = func() {
		if compactAt != 0 {
			_, err := w.Client.Compact(t.Context(), compactAt)
			require.NoError(t, err)
			compactAt = 0
		}
	}
	w.afterRead = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
		if len(r.Success) > 1 && compactAt == 0 && newest != 0 { // the period is being read
			compactAt, newest = newest-100, 0
		}
		return nil
	}
	p := w.history(enough)
	require.True(t, p.Compacted)
	require.Len(t, p.Periods, 1)
	require.Equal(t, second, p.Periods[0].Acquired.Revision)
	require.EqualValues(t, 200, p.Periods[0].Renewed())
	require.Less(t, len(p.Periods[0].Renewals), 102)
}

// All writes of a deadline that the lock did not have when it was taken are renewals.
func TestHistoryCountsRenewalsOfADeadlineSetAfterTheAcquisition(t *testing.T) {
	w := newWorldOn(t, etcdtest.Start(t, localetcd.Options{}))
	w.Set("a", "uuid", "u", "locked_at", stamp(0))
	w.renew(1, 61)
	second, third := w.renew(2, 62), w.renew(3, 63)
	_, err := w.Client.Compact(t.Context(), second)
	require.NoError(t, err)
	p := w.history(enough).Periods[0]
	require.Equal(t, []int64{third, second}, revisions(p.Renewals))
	require.EqualValues(t, 1, p.MoreRenewals)
}

func TestHistoryWithASmallTransactionLimit(t *testing.T) {
	w := newWorld(t)
	since := w.acquire("u", 60)
	w.release()
	for range 2 * maxGets {
		w.Set("b", "x", "x")
	}
	w.afterRead = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
		if len(r.Success) > minGets {
			return rpctypes.ErrGRPCTooManyOps
		}
		return nil
	}
	require.Equal(t, since, w.history(Bounds{Periods: 1, Time: etcdtest.Soon}).Periods[0].Acquired.Revision)
}

func TestHistoryOfNoLock(t *testing.T) {
	w := newWorld(t)
	w.Set("a/b", "uuid", "nested")
	w.renew(1, 2)
	p := w.history(enough)
	require.Empty(t, p.Periods)
	require.EqualValues(t, 1, p.FromRevision)
	_, err := w.Read(t.Context(), "a//b", enough)
	require.ErrorContains(t, err, "lock name")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Read(ctx, "a", enough)
	require.ErrorIs(t, err, context.Canceled)
}
