package lockstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestUnlockTakesTheLockWholeAndNothingElse(t *testing.T) {
	for _, nested := range []int{0, 3, 100} {
		h := newHarness(t)
		h.set("a", "hostname", "of an earlier holder", "leftover", "x")
		h.expired("a", "a/b", "a!", "a0", "a/uuid")
		h.set("a", "ticket", "OPS-1", "~", "x", "\x01", "x")
		h.crowd("a/m%03d/uuid", nested)
		h.native("a")
		h.native("a/b")
		own, others := h.under("a")
		r, revision, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
		require.NoError(t, err)
		require.ElementsMatch(t, others, h.keys())
		require.EqualValues(t, len(own), r.Keys)
		fields, more := r.Shown()
		require.Equal(t, len(own), len(fields)+more)
		if nested < 100 { // beyond, unknown fields are not read
			require.Zero(t, more, "the record is whole")
		}
		now, err := h.client.Get(h.ctx, "x")
		require.NoError(t, err)
		require.Equal(t, now.Header.Revision, revision, "one transaction, the last one")
		require.Len(t, h.sent, 1)
		requireOnlyDeletes(t, h.sent[0])
	}
}

func TestUnlockComparesTheUUID(t *testing.T) {
	h := newHarness(t)
	h.expired("a", "b")
	before := h.keys()
	for _, uuid := range []string{"", "u", "U-a", "u-a ", "u-b"} {
		r, _, err := h.Unlock(h.ctx, "a", Held{UUID: uuid}, nil)
		require.ErrorIs(t, err, ErrOtherUUID)
		require.Equal(t, "u-a", r.UUID(), "who holds it")
	}
	require.Equal(t, before, h.keys())
	require.Empty(t, h.sent)
}

// Another takes the lock between the read and the transaction.
func TestUnlockLosesToTheNextHolder(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.before = func() { h.set("a", "uuid", "next") }
	r, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, ErrOtherUUID)
	require.Equal(t, "next", r.UUID())
	require.Len(t, h.keys(), 5)
}

// The holder deletes its uuid, and so releases the lock, between the read and the
// transaction. No remaining key is newer than what was read: only the uuid shows it.
func TestUnlockLosesToTheRelease(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.before = func() { h.commit(clientv3.OpDelete(h.Layout.Key("a", "uuid"))) }
	_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, ErrNoUUID)
	require.Len(t, h.keys(), 4)
	h.expired("b")
	h.before = func() { h.release("b") }
	_, _, err = h.Unlock(h.ctx, "b", Held{UUID: "u-b"}, nil)
	require.ErrorIs(t, err, ErrNoLock)
}

// A uuid that is used twice is not a token: the person meant the lock they saw.
func TestUnlockLosesToTheSameUUIDTakenAgain(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.before = func() {
		h.release("a")
		h.expired("a")
	}
	_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, ErrOtherUUID)
	require.Len(t, h.keys(), 5)
}

func TestUnlockOutlastsRenewals(t *testing.T) {
	for _, renewals := range []int{1, maxUnlockTries - 1} {
		h := newHarness(t)
		h.expired("a")
		h.before = func() {
			if renewals--; renewals >= 0 {
				h.set("a", "alive_at", fmt.Sprint(past, renewals), "auto_unlock_at", past)
			}
		}
		r, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
		require.NoError(t, err)
		require.Empty(t, h.keys(), "the key that came with the renewal is removed, too")
		require.EqualValues(t, 6, r.Keys)
	}
}

// What was selected some time ago is compared: a lock that was renewed since, also right before the transaction, or that
// was taken again, also under the same uuid, stays.
func TestUnlockComparesWhatWasSelected(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	seen, err := h.ReadOne(h.ctx, "a")
	require.NoError(t, err)
	held := Held{UUID: "u-a", Token: seen.Token, Newest: seen.Revision}
	h.before = func() { h.set("a", "auto_unlock_at", past) }
	_, _, err = h.Unlock(h.ctx, "a", held, nil)
	require.ErrorIs(t, err, ErrRenewed)
	require.Len(t, h.sent, 1, "right before the transaction")
	_, _, err = h.Unlock(h.ctx, "a", held, nil)
	require.ErrorIs(t, err, ErrRenewed)
	require.Len(t, h.sent, 1, "before the read")

	h.before = func() {}
	h.release("a")
	h.expired("a")
	_, _, err = h.Unlock(h.ctx, "a", Held{UUID: "u-a", Token: seen.Token}, nil)
	require.ErrorIs(t, err, ErrOtherUUID)
	require.Len(t, h.keys(), 5)
}

func TestUnlockGivesUp(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.before = func() { h.set("a", "auto_unlock_at", past) }
	_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, ErrUnsteady)
	require.Len(t, h.keys(), 5)
	require.Len(t, h.sent, maxUnlockTries)
}

// A key that another client writes into a gap of the lock meanwhile stays.
func TestUnlockLeavesWhatCameMeanwhile(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.before = func() {
		h.before = nil
		h.native("a")
		h.expired("a/nested")
	}
	_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.NoError(t, err)
	keys, leased := h.list()
	require.Len(t, keys, 6)
	require.Len(t, leased, 1)
}

func TestUnlockOfLeftovers(t *testing.T) {
	h := newHarness(t)
	h.set("orphan", "alert_at", past, "auto_unlock_at", past)
	h.set("unknown", "x", "y")
	for _, name := range []string{"orphan", "unknown"} {
		r, _, err := h.Unlock(h.ctx, name, Held{UUID: ""}, nil)
		require.ErrorIs(t, err, ErrNoUUID)
		fields, _ := r.Shown()
		require.NotEmpty(t, fields)
	}
	require.Len(t, h.keys(), 3)
}

// Whatever is wrong with a lock, a person can remove it.
func TestUnlockOfMalformedLocks(t *testing.T) {
	for name, uuid := range map[string]string{
		"empty": "", "long": strings.Repeat("u", 300), "binary": "\xff\x00\x1b[31m", "several lines": "a\nb\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.set("a", "uuid", uuid, "auto_unlock_at", "1700000000000", "locked_at", "soon")
			_, _, err := h.Unlock(h.ctx, "a", Held{UUID: uuid + "?"}, nil)
			require.ErrorIs(t, err, ErrOtherUUID)
			_, _, err = h.Unlock(h.ctx, "a", Held{UUID: uuid}, nil)
			require.NoError(t, err)
			require.Empty(t, h.keys())
		})
	}
	h := newHarness(t)
	lease, err := h.client.Grant(h.ctx, 600)
	require.NoError(t, err)
	h.commit(clientv3.OpPut(h.Layout.Key("leased", "uuid"), "u", clientv3.WithLease(lease.ID)))
	_, _, err = h.Unlock(h.ctx, "leased", Held{UUID: "u"}, nil)
	require.NoError(t, err)
	require.Empty(t, h.keys())
}

func TestUnlockOfAsMuchAsOneTransactionTakes(t *testing.T) {
	for n, want := range map[int]error{maxSpans - 2: nil, 140: ErrTooLarge, 1_200: ErrTooLarge} {
		h := newHarness(t)
		h.expired("a")
		h.crowd("a/n%04d/uuid", n)
		h.crowd("a/n%04dx", n)
		own, others := h.under("a")
		_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, func(context.Context, Record) (clientv3.Op, error) {
			return clientv3.OpPut("/elsewhere", "why"), nil
		})
		require.ErrorIs(t, err, want, n)
		if want == nil {
			require.Equal(t, others, h.keys())
			continue
		}
		remaining, _ := h.under("a")
		require.Equal(t, own, remaining, "whole")
		require.Empty(t, h.sent)
		h.expired("b")
		require.False(t, Fits(h.read("a")...))
		require.False(t, Fits(h.read("a", "b")...))
	}
}

// What cannot be recorded is not removed. A trace is asked for only where the uuid is right.
func TestUnlockWithoutATraceRemovesNothing(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	failed, asked := errors.New("no lease"), 0
	trace := func(context.Context, Record) (clientv3.Op, error) {
		asked++
		return clientv3.Op{}, failed
	}
	_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-b"}, trace)
	require.ErrorIs(t, err, ErrOtherUUID)
	require.Zero(t, asked)
	_, _, err = h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, trace)
	require.ErrorIs(t, err, failed)
	require.Equal(t, 1, asked)
	require.Len(t, h.keys(), 5)
	require.Empty(t, h.sent)
}

// An etcd that allows fewer operations than the default says so itself.
func TestUnlockWhereEtcdAllowsLess(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{MaxTxnOps: 16})
	h := newHarnessOn(t, client, client)
	h.Explain = func(err error) error { return fmt.Errorf("explained: %w", err) }
	h.expired("a", "b")
	for i := range 20 {
		h.set("a", fmt.Sprintf("n%04d/uuid", i), "x", fmt.Sprintf("n%04dx", i), "x")
	}
	before := h.keys()
	_, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
	require.ErrorContains(t, err, "explained: ")
	require.ErrorContains(t, err, "too many operations")
	require.Equal(t, before, h.keys())
	_, _, err = h.Unlock(h.ctx, "b", Held{UUID: "u-b"}, nil)
	require.NoError(t, err)
}

// Nobody knows what became of a transaction without an answer; another try shows it.
func TestUnlockWithoutAnAnswer(t *testing.T) {
	cluster, direct := newEtcd(t, localetcd.Options{})
	proxy, err := localetcd.NewProxy(cluster.Addr(0))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	client, err := cluster.Client(func(c *clientv3.Config) { c.Endpoints = []string{proxy.Addr()} })
	require.NoError(t, err)
	h := newHarnessOn(t, direct, client)
	h.expired("a")
	removed := direct.Watch(h.ctx, h.Layout.Key("a", "uuid"), clientv3.WithFilterPut())
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	h.before = func() {
		proxy.HoldReplies()
		go func() {
			<-removed
			cancel()
		}()
	}
	_, _, err = h.Unlock(ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, ErrAmbiguous)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, proxy.Heal())
	_, _, err = h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
	require.ErrorIs(t, err, ErrNoLock)
	require.Empty(t, h.keys())
}

func TestUnlockAtFullQuota(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	h := newHarnessOn(t, client, client)
	h.expired("a", "a/b", "big")
	h.set("big", "backtrace", strings.Repeat("x", 64<<10))
	h.fill()
	for _, name := range []string{"a", "big"} {
		_, _, err := h.Unlock(h.ctx, name, Held{UUID: "u-" + name}, nil)
		require.NoError(t, err)
	}
	require.Len(t, h.keys(), 5)
}
