package lockstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func TestS4_NeighboursAndNestedNamesStay(t *testing.T) {
	family := []string{"a", "a/b", "a/b/c", "a!", "a0", "ab", "a.", "a/alert_at", "a/uuid", "a/uuid/uuid", "a/b!", "a/b0", "a/h/h", "A", "a/\x01", "a/~", "a/\U0010ffff"}
	for _, name := range family {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.expired(family...)
			h.set(name, "unknown", "x", "\x01", "x", "~", "x", "i", "x")
			// Fields right before, in place of, and right after a nested name.
			h.set(name, "b", "x", "b!", "x", "b.", "x", "b0", "x", "b\x00", "x", "uuid0", "x", "h0", "x")
			own, others := h.under(name)
			require.Len(t, own, 16)
			h.remove(name)
			require.Equal(t, others, h.keys())
		})
	}
}

func TestS4_AllOfAFamilyInOneBatch(t *testing.T) {
	h := newHarness(t)
	family := []string{"a", "a/b", "a/b/c", "a/uuid", "a/uuid/x", "a!", "a0"}
	h.expired(family...)
	h.expired("a/stays", "a/b/stays")
	h.remove(family...)
	one, _ := h.under("a/stays")
	other, _ := h.under("a/b/stays")
	require.Len(t, one, 5)
	require.Len(t, other, 5)
	require.Len(t, h.keys(), 10)
}

// Names that nest between the lock's own fields, so that each lies in a gap of
// its own.
func TestS4_NamesNestedBetweenTheFields(t *testing.T) {
	for _, n := range []int{1, 30, 60, 120} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHarness(t)
			h.expired("a")
			h.set("a", "alert_at", past, "alive_at", past, "backtrace", "x", "owner", "o", "pid", "1")
			for i := range n {
				h.set(fmt.Sprintf("a/n%03d", i), "uuid", "x")
				h.set("a", fmt.Sprintf("n%03dx", i), "x")
			}
			_, others := h.under("a")
			h.remove("a")
			require.Equal(t, others, h.keys())
		})
	}
}

// A change in a nested name does not concern the lock.
func TestS4_ChangesOfNestedNamesAreNoConflict(t *testing.T) {
	h := newHarness(t)
	h.expired("a", "a/b", "a/p/q")
	records := h.read("a")
	h.set("a/b", "hostname", "other", "alive_at", "new")
	h.expired("a/b/c", "a/p")
	require.Equal(t, []int64{5}, h.deleted(records...))
	own, others := h.under("a")
	require.Empty(t, own)
	require.Len(t, others, 21)
}

func TestS4_NativeMutexesStay(t *testing.T) {
	h := newHarness(t)
	session, err := concurrency.NewSession(h.client)
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	// They come first: a native mutex waits for every key that lay under its
	// name before, also for those of a lock of ours.
	for _, name := range []string{"a", "a/b", "native"} {
		mutex := concurrency.NewMutex(session, h.Layout.Prefix()+name)
		require.NoError(t, mutex.TryLock(h.ctx))
	}
	h.expired("a", "a/b")
	_, leased := h.list()
	require.Len(t, leased, 3)
	h.remove("a", "a/b")
	require.Equal(t, leased, h.keys())
	native := h.read("native")
	require.Zero(t, native[0].Keys)
	require.False(t, Fits(native...), "there is nothing to delete")
}

// A native mutex that is taken between verdict and transaction.
func TestS4_NativeMutexTakenMeanwhile(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	records := h.read("a")
	h.native("a")
	require.Equal(t, []int64{0}, h.deleted(records...))
	require.Len(t, h.keys(), 6)
	h.remove("a")
	require.Len(t, h.keys(), 1)
}

func TestS4_LockWithManyKeys(t *testing.T) {
	for _, n := range []int{58, 59, 60, 70, 130, 994, 995, 996, 3_000} {
		for _, nested := range [][]string{nil, {"a/b", "a/k0500", "a/x"}} {
			t.Run(fmt.Sprint(n, nested), func(t *testing.T) {
				h := newHarness(t)
				h.expired(append(nested, "a", "a!", "a0")...)
				h.crowd("a/k%04d", n)
				_, others := h.under("a")
				require.Equal(t, []int64{int64(n) + 5}, h.deleted(h.read("a")...))
				require.Equal(t, others, h.keys())
			})
		}
	}
}

func TestS4_HundredsOfNestedNamesAndUnknownFields(t *testing.T) {
	for _, n := range []int{120, 130, 300, 1_500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHarness(t)
			h.expired("a")
			h.set("a", "!", "x", "m0100", "x", "m0100x", "x", "m0101/", "invalid", "~", "x")
			h.crowd("a/m%04d/uuid", n)
			for i := 950; i < 1_010; i++ { // right after a nested name, and around the end of a page
				h.set("a", fmt.Sprintf("m%04d0", i), "x")
			}
			for _, invalid := range []string{"a//x", "a/m0005//uuid", "a/m0005/", "a/m0005/\xff/uuid"} {
				h.commit(clientv3.OpPut(h.Layout.Prefix()+invalid, "invalid"))
			}
			_, others := h.under("a")
			others = append(others, "a/") // without a field it belongs to no lock
			h.commit(clientv3.OpPut(h.Layout.Prefix()+"a/", "invalid"))
			h.remove("a")
			require.ElementsMatch(t, others, h.keys())
		})
	}
}

func TestS4_BigValues(t *testing.T) {
	h := newHarness(t)
	h.expired("a", "b", "c", "a/b")
	h.set("a", "backtrace", strings.Repeat("x", 1<<20))
	h.set("b", "unknown", strings.Repeat("x", 1<<20))
	h.remove("a", "b", "c")
	require.Len(t, h.keys(), 5)
}

// The lock of a batch that was read first tells how old the connection must be. It does not matter how a lock was read.
func TestS4_NothingThatWasReadCountsOnAConnectionThatBeganSince(t *testing.T) {
	h := newHarness(t)
	h.expired("first", "last")
	h.set("large", "uuid", "u", "payload", strings.Repeat("x", 20<<10))
	large, err := h.readLarge(h.ctx, h.listed("large"))
	require.NoError(t, err)
	records := append([]Record{large}, h.read("first")...)
	began := time.Now()
	records = append(records, h.read("last")...)
	for name, batch := range map[string][]Record{"large": {records[2], records[0]}, "first": {records[1], records[2]}} {
		h.connected.began = began
		_, _, err := h.Delete(h.ctx, Terms{Open: always}, batch...)
		require.ErrorIs(t, err, ErrWithdrawn, name)
	}
	h.connected.began = time.Time{}
	require.Equal(t, []int64{int64(records[1].Keys), int64(records[2].Keys)}, h.deleted(records[1:]...))
}

func TestS4_AManualUnlockReadsAgainOnAConnectionThatBeganSince(t *testing.T) {
	for _, keys := range []int{5, 2 * smallLock} {
		h := newHarness(t)
		h.expired("a")
		h.crowd("a/field%d", keys-5)
		h.before = func() {
			h.before, h.connected.began = nil, time.Now()
		}
		rec, _, err := h.Unlock(h.ctx, "a", Held{UUID: "u-a"}, nil)
		require.NoError(t, err)
		require.EqualValues(t, keys, rec.Keys)
		require.True(t, h.connected.began.Before(rec.read))
		require.Len(t, h.sent, 2)
		require.Empty(t, h.keys())
	}
}
