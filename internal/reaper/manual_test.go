package reaper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// names of an entry's fields, in its order.
func (e Entry) names() []string {
	all := []string{}
	for _, f := range e.Fields {
		all = append(all, f.Name)
	}
	return all
}

func (h *house) unlock(name, uuid string) (Entry, int64, error) {
	h.t.Helper()
	return h.store.Unlock(h.ctx, name, uuid)
}

func (h *house) revision() int64 {
	h.t.Helper()
	resp, err := h.cli.Get(h.ctx, "x")
	require.NoError(h.t, err)
	return resp.Header.Revision
}

// native writes a key as etcd's own mutexes do, right below a name.
func (h *house) native(name string) {
	h.t.Helper()
	lease, err := h.cli.Grant(h.ctx, 600)
	require.NoError(h.t, err)
	_, err = h.cli.Put(h.ctx, fmt.Sprintf("%s%s/%x", h.Layout.Prefix(), name, lease.ID), "", clientv3.WithLease(lease.ID))
	require.NoError(h.t, err)
}

func TestReadGivesTheLockAndNothingElse(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.put("a", map[string]string{"hostname": "of an earlier owner"})
	h.expired("a", "a/b", "a!", "a0")
	h.put("a", map[string]string{"ticket": "OPS-1", "\x01": "\xff", "alert_at": past.String()})
	h.native("a")
	e, err := h.store.Read(h.ctx, "a")
	require.NoError(t, err)
	require.Equal(t, []string{"alert_at", "auto_unlock_at", "hostname", "locked_at", "purpose", "uuid", "\x01", "ticket"}, e.names())
	require.Equal(t, Field{"\x01", "\uFFFD"}, e.Fields[6], "valid UTF-8")
	require.Zero(t, e.More)
	require.Equal(t, "u-a", e.UUID())
	require.Equal(t, past, e.AutoUnlockAt())
	require.EqualValues(t, 8, e.Keys)
}

func TestReadOfNoLock(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a/b")
	h.native("native")
	for _, name := range []string{"a", "none", "native", "a/b/c"} {
		_, err := h.store.Read(h.ctx, name)
		require.ErrorIs(t, err, ErrNoLock, name)
	}
	for _, name := range []string{"", "/a", "a/", "a//b", "\xff"} {
		_, err := h.store.Read(h.ctx, name)
		require.ErrorContains(t, err, "lock name", name)
	}
}

func TestReadIsBounded(t *testing.T) {
	for _, n := range []int{62, 63, 64, 65, 300} {
		h := newHouse(t, sharedClient(t))
		fields := map[string]string{"uuid": "u", "backtrace": strings.Repeat("x", maxShownValue+1)}
		for i := range n - 2 {
			fields[fmt.Sprintf("k%04d", i)] = "x"
		}
		h.put("a", fields)
		e, err := h.store.Read(h.ctx, "a")
		require.NoError(t, err)
		require.EqualValues(t, n, e.Keys)
		require.Equal(t, n, len(e.Fields)+e.More)
		require.Equal(t, []string{"backtrace", "uuid"}, e.names()[:2])
		require.Len(t, e.Fields[0].Value, maxShownValue+len("…"))
	}
}

func TestUnlockTakesTheLockWholeAndNothingElse(t *testing.T) {
	for _, nested := range []int{0, 3, 100} {
		h := newHouse(t, sharedClient(t))
		h.put("a", map[string]string{"hostname": "of an earlier owner", "leftover": "x"})
		h.expired("a", "a/b", "a!", "a0", "a/uuid")
		h.put("a", map[string]string{"ticket": "OPS-1", "~": "x", "\x01": "x"})
		h.crowd("a/m%03d", nested)
		h.native("a")
		h.native("a/b")
		own, others := under(h.keys(), "a")
		native := nativeKeys(h)
		own = slices.DeleteFunc(own, func(k string) bool { return slices.Contains(native, k) })
		others = slices.Compact(slices.Sorted(slices.Values(append(others, native...))))
		e, revision, err := h.unlock("a", "u-a")
		require.NoError(t, err)
		require.Equal(t, others, h.keys())
		require.EqualValues(t, len(own), e.Keys)
		require.Equal(t, len(own), len(e.Fields)+e.More)
		if nested < 100 { // beyond, fields that are unknown are not read
			require.Zero(t, e.More, "the record is whole")
		}
		require.Equal(t, h.revision(), revision, "one transaction, the last one")
		require.Len(t, h.kv.sent(), 1)
		requireOnlyDeletes(t, h.kv.sent()[0].then)
		require.Empty(t, h.kv.sent()[0].otherwise)
	}
}

// nativeKeys are those with a lease, without the prefix.
func nativeKeys(h *house) []string {
	h.t.Helper()
	resp, err := h.cli.Get(h.ctx, h.Layout.Prefix(), clientv3.WithPrefix())
	require.NoError(h.t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		if kv.Lease != 0 {
			keys = append(keys, string(kv.Key[len(h.Layout.Prefix()):]))
		}
	}
	return keys
}

func TestUnlockComparesTheUUID(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a", "b")
	before := h.keys()
	for _, uuid := range []string{"", "u", "U-a", "u-a ", "u-b"} {
		e, _, err := h.unlock("a", uuid)
		require.ErrorIs(t, err, ErrOtherUUID)
		require.Equal(t, "u-a", e.UUID(), "who holds it")
	}
	require.Equal(t, before, h.keys())
	require.Empty(t, h.kv.sent())
}

// Another takes the lock between the read and the transaction.
func TestUnlockLosesToTheNextOwner(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	h.kv.before = func() { h.put("a", map[string]string{"uuid": "next"}) }
	e, _, err := h.unlock("a", "u-a")
	require.ErrorIs(t, err, ErrOtherUUID)
	require.Equal(t, "next", e.UUID())
	require.Len(t, h.keys(), 5)
}

// The owner deletes its uuid, and so releases the lock, between the read and the
// transaction. No key that is left is newer than what was read: the uuid alone tells.
func TestUnlockLosesToTheRelease(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	h.kv.before = func() {
		_, err := h.cli.Delete(h.ctx, h.Layout.Key("a", "uuid"))
		require.NoError(t, err)
	}
	_, _, err := h.unlock("a", "u-a")
	require.ErrorIs(t, err, ErrNoUUID)
	require.Len(t, h.keys(), 4)
	h.expired("b")
	h.kv.before = func() { h.release("b") }
	_, _, err = h.unlock("b", "u-b")
	require.ErrorIs(t, err, ErrNoLock)
}

// A uuid that is used twice is no token: the person meant the lock they saw.
func TestUnlockLosesToTheSameUUIDTakenAgain(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	h.kv.before = func() {
		h.release("a")
		h.expired("a")
	}
	_, _, err := h.unlock("a", "u-a")
	require.ErrorIs(t, err, ErrOtherUUID)
	require.Len(t, h.keys(), 5)
}

// What one lock can hold must not become the memory of the daemon.
func TestReadOfAMonsterIsBounded(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.put("a", map[string]string{"uuid": "u"})
	for i := range 20 {
		h.put("a", map[string]string{fmt.Sprintf("%02d%s", i, strings.Repeat("n", 200<<10)): strings.Repeat("v", 200<<10)})
	}
	e, err := h.store.Read(h.ctx, "a")
	require.NoError(t, err)
	require.EqualValues(t, 21, e.Keys)
	require.Equal(t, 21, len(e.Fields)+e.More)
	total := 0
	for _, f := range e.Fields {
		total += len(f.Name) + len(f.Value)
	}
	require.LessOrEqual(t, total, maxShownBytes)
	rec, err := h.store.whole(h.ctx, "a")
	require.NoError(t, err)
	require.LessOrEqual(t, rec.kept, keptBytes+maxShownValue+maxLogName+8)
}

func TestUnlockOutlastsRenewals(t *testing.T) {
	for _, renewals := range []int{1, unlockTries - 1} {
		h := newHouse(t, sharedClient(t))
		h.expired("a")
		h.kv.before = func() {
			if renewals--; renewals >= 0 {
				h.put("a", map[string]string{"alive_at": fmt.Sprint(past, renewals), "auto_unlock_at": past.String()})
			}
		}
		e, _, err := h.unlock("a", "u-a")
		require.NoError(t, err)
		require.Empty(t, h.keys(), "the key that came with the renewal is gone too")
		require.EqualValues(t, 6, e.Keys)
	}
}

func TestUnlockGivesUp(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	h.kv.before = func() { h.put("a", map[string]string{"auto_unlock_at": past.String()}) }
	_, _, err := h.unlock("a", "u-a")
	require.ErrorIs(t, err, ErrUnsteady)
	require.Len(t, h.keys(), 5)
	require.Len(t, h.kv.sent(), unlockTries)
}

// A key that somebody else writes into a gap of the lock meanwhile is not taken along.
func TestUnlockLeavesWhatCameMeanwhile(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	once := true
	h.kv.before = func() {
		if once {
			once = false
			h.native("a")
			h.expired("a/nested")
		}
	}
	_, _, err := h.unlock("a", "u-a")
	require.NoError(t, err)
	require.Len(t, h.keys(), 6)
	require.Len(t, nativeKeys(h), 1)
}

func TestUnlockOfLeftovers(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.put("orphan", map[string]string{"alert_at": past.String(), "auto_unlock_at": past.String()})
	h.put("unknown", map[string]string{"x": "y"})
	for _, name := range []string{"orphan", "unknown"} {
		e, _, err := h.unlock(name, "")
		require.ErrorIs(t, err, ErrNoUUID)
		require.NotEmpty(t, e.Fields)
	}
	require.Len(t, h.keys(), 3)
}

// Whatever is wrong with a lock, a person can remove it.
func TestUnlockOfMalformedLocks(t *testing.T) {
	for name, uuid := range map[string]string{
		"empty": "", "long": strings.Repeat("u", 300), "binary": "\xff\x00\x1b[31m", "several lines": "a\nb\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.put("a", map[string]string{"uuid": uuid, "auto_unlock_at": "1700000000000", "locked_at": "soon"})
			_, _, err := h.unlock("a", uuid+"?")
			require.ErrorIs(t, err, ErrOtherUUID)
			_, _, err = h.unlock("a", uuid)
			require.NoError(t, err)
			require.Empty(t, h.keys())
		})
	}
	h := newHouse(t, sharedClient(t))
	lease, err := h.cli.Grant(h.ctx, 600)
	require.NoError(t, err)
	_, err = h.cli.Put(h.ctx, h.Layout.Key("leased", "uuid"), "u", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	_, _, err = h.unlock("leased", "u")
	require.NoError(t, err)
	require.Empty(t, h.keys())
}

func TestUnlockOfAsMuchAsOneTransactionTakes(t *testing.T) {
	for n, most := range map[int]error{maxSpans - 2: nil, 140: ErrTooLarge, 1_200: ErrTooLarge} {
		h := newHouse(t, sharedClient(t))
		h.expired("a")
		fields := map[string]string{}
		for i := range n {
			fields[fmt.Sprintf("n%04d/uuid", i)], fields[fmt.Sprintf("n%04dx", i)] = "x", "x"
		}
		h.put("a", fields)
		own, others := under(h.keys(), "a")
		_, _, err := h.unlock("a", "u-a")
		require.ErrorIs(t, err, most, n)
		left, _ := under(h.keys(), "a")
		if most != nil {
			require.Equal(t, own, left, "whole")
			require.Empty(t, h.kv.sent())
			continue
		}
		require.Equal(t, others, h.keys())
	}
}

// An etcd that allows less than the default says so itself.
func TestUnlockWhereEtcdAllowsLess(t *testing.T) {
	cluster := localetcd.ForTest(t, localetcd.Options{MaxTxnOps: 16})
	cli, err := cluster.Client()
	require.NoError(t, err)
	h := newHouse(t, cli)
	h.expired("a", "b")
	for i := range 20 {
		h.put("a", map[string]string{fmt.Sprintf("n%04d/uuid", i): "x", fmt.Sprintf("n%04dx", i): "x"})
	}
	before := h.keys()
	_, _, err = h.unlock("a", "u-a")
	require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
	require.ErrorContains(t, err, "too many operations")
	require.Equal(t, before, h.keys())
	_, _, err = h.unlock("b", "u-b")
	require.NoError(t, err)
}

// Nobody knows what became of a transaction without an answer; to ask again tells.
func TestUnlockWithoutAnAnswer(t *testing.T) {
	cluster := localetcd.ForTest(t, localetcd.Options{})
	proxy, err := localetcd.NewProxy(cluster.Addr(0))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	cli, err := cluster.Client(func(c *clientv3.Config) { c.Endpoints = []string{proxy.Addr()} })
	require.NoError(t, err)
	h := newHouse(t, cli)
	h.expired("a")
	h.store.RequestTimeout = 500 * time.Millisecond
	h.kv.before = proxy.HoldReplies
	_, _, err = h.unlock("a", "u-a")
	require.ErrorIs(t, err, ErrAmbiguous)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, proxy.Heal())
	h.store.RequestTimeout = 10 * time.Second
	_, _, err = h.unlock("a", "u-a")
	require.ErrorIs(t, err, ErrNoLock)
	require.Empty(t, h.keys())
}

func TestUnlockAtFullQuota(t *testing.T) {
	cluster := localetcd.ForTest(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	cli, err := cluster.Client()
	require.NoError(t, err)
	h := newHouse(t, cli)
	h.expired("a", "a/b", "big")
	h.put("big", map[string]string{"backtrace": string(make([]byte, 64<<10))})
	for err == nil {
		_, err = cli.Put(h.ctx, "/filler", string(make([]byte, 256<<10)))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	for _, name := range []string{"a", "big"} {
		_, _, err = h.unlock(name, "u-"+name)
		require.NoError(t, err)
	}
	require.Len(t, h.keys(), 5)
}
