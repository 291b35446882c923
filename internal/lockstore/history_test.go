package lockstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// enough are bounds that no test here reaches.
var enough = Bounds{Periods: 100, Renewals: 100, Time: soon}

func (h *harness) history(b Bounds) Past {
	h.t.Helper()
	p, err := h.History(h.ctx, "a", b)
	require.NoError(h.t, err)
	return p
}

// at formats a time of the tests, in seconds after the one when the lock was taken.
func at(seconds int) string { return fmt.Sprint(1_700_000_000 + seconds) }

func (h *harness) acquire(uuid string, deadline int) int64 {
	return h.set("a", "uuid", uuid, "hostname", "host-"+uuid, "locked_at", at(0), "auto_unlock_at", at(deadline), "purpose", strings.Repeat("p", 1000))
}

func (h *harness) renew(alive, deadline int) int64 {
	return h.set("a", "alive_at", at(alive), "auto_unlock_at", at(deadline))
}

func TestHistoryHasTheLockBeforeEachRenewal(t *testing.T) {
	h := newHarness(t)
	h.acquire("u", 60)
	first, second := h.renew(15, 75), h.renew(69, 129)
	p := h.history(enough)
	require.Len(t, p.Periods, 1)
	require.Zero(t, p.Periods[0].Until)
	require.Equal(t, []int64{second, first}, revisions(p.Periods[0].Renewals))
	for i, want := range []struct{ locked, alive, deadline string }{{at(0), at(15), at(75)}, {at(0), "", at(60)}} {
		before := p.Periods[0].Renewals[i].Before
		require.Equal(t, want.locked, before.LockedAt().String())
		require.Equal(t, want.deadline, before.AutoUnlockAt().String())
		require.Equal(t, want.alive != "", before.Renewed())
		if want.alive != "" {
			require.Equal(t, want.alive, before.AliveAt().String())
		}
	}
}

func TestHistoryOfFieldsThatWereDeleted(t *testing.T) {
	h := newHarness(t)
	since := h.acquire("u", 60)
	h.renew(1, 61)
	h.commit(clientv3.OpDelete(h.Layout.Key("a", "auto_unlock_at")))
	third := h.renew(3, 63)
	require.Equal(t, []int64{third}, revisions(h.history(enough).Periods[0].Renewals), "those before are not known")
	h.commit(clientv3.OpDelete(h.Layout.Key("a", "auto_unlock_at")))
	until := h.commit(clientv3.OpDelete(h.Layout.Key("a", "uuid")))
	last := h.history(enough).Periods[0]
	require.Equal(t, []int64{since, until, 3 + 1}, []int64{last.Since, last.Until, int64(last.Leftovers)})
	require.Empty(t, last.Renewals)
	require.True(t, last.AutoUnlockAt().IsZero())
}

func revisions(renewals []Renewal) (all []int64) {
	for _, r := range renewals {
		all = append(all, r.Revision)
	}
	return all
}

// A uuid with a lease is deleted by etcd itself.
func TestHistoryOfALockWithALease(t *testing.T) {
	h := newHarness(t)
	lease, err := h.client.Grant(h.ctx, 600)
	require.NoError(t, err)
	since := h.commit(clientv3.OpPut(h.Layout.Key("a", "uuid"), "u", clientv3.WithLease(lease.ID)))
	_, err = h.client.Revoke(h.ctx, lease.ID)
	require.NoError(t, err)
	got := h.history(enough).Periods
	require.Len(t, got, 1)
	require.Equal(t, []int64{since, since + 1}, []int64{got[0].Since, got[0].Until})
}

func TestHistoryIsBounded(t *testing.T) {
	h := newHarness(t)
	for i := range 5 {
		h.acquire(fmt.Sprint(i), 60)
		for range 7 {
			h.renew(1, 61)
		}
		h.release("a")
	}
	p := h.history(Bounds{Periods: 2, Renewals: 3, Time: soon})
	require.Len(t, p.Periods, 2)
	require.True(t, p.Truncated)
	require.False(t, p.Compacted)
	require.Equal(t, p.Periods[1].Since, p.From)
	for i, period := range p.Periods {
		require.Equal(t, fmt.Sprint(4-i), period.UUID())
		require.Len(t, period.Renewals, 3)
		require.EqualValues(t, 4, period.More)
	}
	require.True(t, h.history(Bounds{Periods: 5, Time: soon}).Truncated)
}

// What was found when the time ends is the result; an end that the caller wanted is an error.
func TestHistoryEndsWithItsTime(t *testing.T) {
	h := newHarness(t)
	h.acquire("u", 60)
	h.release("a")
	for range 3 * maxGets {
		h.set("b", "x", "x")
	}
	stop := func() {}
	h.afterRead = func(r *etcdserverpb.TxnRequest, _ *etcdserverpb.TxnResponse) error {
		if len(r.Success) == maxGets {
			stop()
			return context.DeadlineExceeded
		}
		return nil
	}
	ctx, cancel := context.WithCancel(h.ctx)
	stop = cancel
	_, err := h.History(ctx, "a", enough)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the caller has gone")
	_, err = h.History(h.ctx, "a", enough)
	require.ErrorIs(t, err, context.DeadlineExceeded, "etcd is too slow")

	limited := Bounds{Periods: 1, Time: 5 * time.Second} // enough for what comes before
	h.afterRead = func(r *etcdserverpb.TxnRequest, _ *etcdserverpb.TxnResponse) error {
		if len(r.Success) == maxGets {
			<-time.After(limited.Time) // etcd is slow
			return context.DeadlineExceeded
		}
		return nil
	}
	p := h.history(limited)
	require.Empty(t, p.Periods)
	require.True(t, p.Truncated)
	require.Greater(t, p.Revision, p.From)
}

func TestHistoryWhileEtcdIsCompacted(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{UnsafeNoFsync: true})
	h := newHarnessOn(t, client, client)
	h.acquire("gone", 60)
	h.release("a")
	second := h.acquire("second", 60)
	for range 200 {
		h.renew(1, 61)
	}
	h.release("a")
	newest := h.set("b", "x", "x")
	compactAt := int64(0)
	h.beforeRead = func(int) {
		if compactAt != 0 {
			_, err := client.Compact(h.ctx, compactAt)
			require.NoError(t, err)
			compactAt = 0
		}
	}
	h.afterRead = func(r *etcdserverpb.TxnRequest, _ *etcdserverpb.TxnResponse) error {
		if len(r.Success) > 1 && compactAt == 0 && newest != 0 { // the period is being read
			compactAt, newest = newest-100, 0
		}
		return nil
	}
	p := h.history(enough)
	require.True(t, p.Compacted)
	require.Len(t, p.Periods, 1)
	require.Equal(t, second, p.Periods[0].Since)
	require.EqualValues(t, 200, int64(len(p.Periods[0].Renewals))+p.Periods[0].More)
	require.Less(t, len(p.Periods[0].Renewals), 102)
}

// All writes of a deadline that the lock did not have when it was taken are renewals.
func TestHistoryCountsRenewalsOfADeadlineSetAfterTheAcquisition(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{UnsafeNoFsync: true})
	h := newHarnessOn(t, client, client)
	h.set("a", "uuid", "u", "locked_at", at(0))
	h.renew(1, 61)
	second, third := h.renew(2, 62), h.renew(3, 63)
	_, err := client.Compact(h.ctx, second)
	require.NoError(t, err)
	p := h.history(enough).Periods[0]
	require.Equal(t, []int64{third, second}, revisions(p.Renewals))
	require.EqualValues(t, 1, p.More)
}

func TestHistoryWithASmallTransactionLimit(t *testing.T) {
	h := newHarness(t)
	since := h.acquire("u", 60)
	h.release("a")
	for range 2 * maxGets {
		h.set("b", "x", "x")
	}
	h.afterRead = func(r *etcdserverpb.TxnRequest, _ *etcdserverpb.TxnResponse) error {
		if len(r.Success) > minGets {
			return rpctypes.ErrGRPCTooManyOps
		}
		return nil
	}
	require.Equal(t, since, h.history(Bounds{Periods: 1, Time: soon}).Periods[0].Since)
}

func TestHistoryOfNoLock(t *testing.T) {
	h := newHarness(t)
	h.set("a/b", "uuid", "nested")
	h.renew(1, 2)
	p := h.history(enough)
	require.Empty(t, p.Periods)
	require.EqualValues(t, 1, p.From)
	_, err := h.History(h.ctx, "a//b", enough)
	require.ErrorContains(t, err, "lock name")
	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	_, err = h.History(ctx, "a", enough)
	require.ErrorIs(t, err, context.Canceled)
}

func TestWrittenAtFindsTheKeysOfARevision(t *testing.T) {
	h := newHarness(t)
	var ops []clientv3.Op
	for i := range 2 * maxWritten {
		ops = append(ops, clientv3.OpPut(h.Layout.Key("records", fmt.Sprint(i)), fmt.Sprint(i)))
	}
	one := h.set("records", "one", "one")
	none := h.set("a", "uuid", "u")
	many := h.commit(ops...)
	h.commit(clientv3.OpDelete(h.Layout.Key("records", "one")))
	again := h.set("records", "one", "again")
	got, err := h.WrittenAt(h.ctx, h.Layout.Prefix()+"records/", []int64{again, many, none, one})
	require.NoError(t, err)
	require.Len(t, got[many], maxWritten)
	delete(got, many)
	require.Equal(t, map[int64][][]byte{one: {[]byte("one")}, again: {[]byte("again")}}, got)
}
