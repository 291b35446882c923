package reaper

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// under returns the keys that lie directly under a name, and the others.
func under(keys []string, name string) (own, others []string) {
	for _, k := range keys {
		if k[:strings.LastIndexByte(k, '/')] == name {
			own = append(own, k)
		} else {
			others = append(others, k)
		}
	}
	return own, others
}

func TestS4_NeighboursAndNestedNamesStay(t *testing.T) {
	family := []string{"a", "a/b", "a/b/c", "a!", "a0", "ab", "a.", "a/alert_at", "a/uuid", "a/uuid/uuid", "a/b!", "a/b0", "a/h/h", "A", "a/\x01", "a/~", "a/\U0010ffff"}
	for _, name := range family {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired(family...)
			h.put(name, map[string]string{"unknown": "x", "\x01": "x", "~": "x", "i": "x"})
			// Fields right before, in place of, and right behind a nested name.
			h.put(name, map[string]string{"b": "x", "b!": "x", "b.": "x", "b0": "x", "b\x00": "x", "uuid0": "x", "h0": "x"})
			own, others := under(h.keys(), name)
			require.Len(t, own, 16)
			h.remove(name)
			require.Equal(t, others, h.keys())
			require.Equal(t, 1, h.removed())
		})
	}
}

func TestS4_AllOfAFamilyInOneBatch(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	family := []string{"a", "a/b", "a/b/c", "a/uuid", "a/uuid/x", "a!", "a0"}
	h.expired(family...)
	h.expired("a/stays", "a/b/stays")
	h.remove(family...)
	_, others := under(h.keys(), "a/stays")
	_, others = under(others, "a/b/stays")
	require.Empty(t, others)
	require.Len(t, h.keys(), 10)
	require.Equal(t, len(family), h.removed())
}

// Names that nest between the lock's own fields, so that each lies in a gap of
// its own.
func TestS4_NamesNestedBetweenTheFields(t *testing.T) {
	for _, n := range []int{1, 30, 60, 120} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired("a")
			h.put("a", map[string]string{"alert_at": past.String(), "alive_at": past.String(), "backtrace": "x", "owner": "o", "pid": "1"})
			for i := range n {
				h.put(fmt.Sprintf("a/n%03d", i), map[string]string{"uuid": "x"})
				h.put("a", map[string]string{fmt.Sprintf("n%03dx", i): "x"})
			}
			_, others := under(h.keys(), "a")
			h.remove("a")
			require.Equal(t, others, h.keys())
		})
	}
}

// What happens in nested names is no business of the lock's.
func TestS4_ChangesOfNestedNamesAreNoConflict(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a", "a/b", "a/p/q")
	h.kv.before = func() {
		h.put("a/b", map[string]string{"hostname": "other", "alive_at": "new"})
		h.expired("a/b/c", "a/p")
	}
	h.remove("a")
	_, others := under(h.keys(), "a")
	require.Equal(t, others, h.keys())
	require.Len(t, others, 21)
	require.Equal(t, 1, h.removed())
}

// More gaps with keys of the lock than a transaction can take: it is left whole,
// and said so.
func TestS4_TooManyGapsAreLeftWhole(t *testing.T) {
	for _, n := range []int{140, 1_200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired("a", "b")
			fields := map[string]string{}
			for i := range n {
				fields[fmt.Sprintf("n%04d/uuid", i)], fields[fmt.Sprintf("n%04dx", i)] = "x", "x"
			}
			h.put("a", fields)
			before, _ := under(h.keys(), "a")
			h.remove("a", "b")
			after, _ := under(h.keys(), "a")
			require.Equal(t, before, after)
			require.Equal(t, 1, h.removed())
			require.Len(t, h.kv.sent(), 1, "that of the other lock")
			require.Equal(t, map[Reason]uint64{ReasonTooLarge: 1}, h.failures())
			require.Len(t, h.logs.with(t, msgCannot, "a"), 1)
			require.Empty(t, h.logs.with(t, msgRemoving, "a"))
			require.Greater(t, h.source.postponed()[0].delay, leastBackoff/2-1)
		})
	}
}

func TestS4_NativeMutexesStay(t *testing.T) {
	cli := sharedClient(t)
	h := newHouse(t, cli)
	session, err := concurrency.NewSession(cli)
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	// They come first: a native mutex waits for every key that lay under its
	// name before, also for those of a lock of ours.
	for _, name := range []string{"a", "a/b", "native"} {
		mutex := concurrency.NewMutex(session, h.Layout.Prefix()+name)
		require.NoError(t, mutex.TryLock(h.ctx))
	}
	h.expired("a", "a/b")
	leased := slices.DeleteFunc(h.keys(), func(k string) bool { return !strings.Contains(k, fmt.Sprintf("%x", session.Lease())) })
	require.Len(t, leased, 3)
	h.remove("a", "a/b")
	require.Equal(t, leased, h.keys())
	require.NoError(t, h.handle(h.candidate("native")))
	require.Equal(t, leased, h.keys())
	require.Equal(t, 2, h.removed())
}

// A native mutex that is taken between verdict and transaction.
func TestS4_NativeMutexTakenMeanwhile(t *testing.T) {
	cli := sharedClient(t)
	h := newHouse(t, cli)
	session, err := concurrency.NewSession(cli)
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	h.expired("a")
	h.kv.before = func() {
		_, err := cli.Put(h.ctx, fmt.Sprintf("%sa/%x", h.Layout.Prefix(), session.Lease()), "", clientv3.WithLease(session.Lease()))
		require.NoError(t, err)
	}
	h.remove("a")
	require.Len(t, h.keys(), 6)
	h.kv.before = nil
	h.remove("a")
	require.Len(t, h.keys(), 1)
}

func TestS4_LockWithManyKeys(t *testing.T) {
	for _, n := range []int{58, 59, 60, 70, 130, 994, 995, 996, 3_000} {
		for _, nested := range []bool{false, true} {
			t.Run(fmt.Sprint(n, nested), func(t *testing.T) {
				h := newHouse(t, sharedClient(t))
				h.expired("a", "a!", "a0")
				if nested {
					h.expired("a/b", "a/k0500", "a/x")
				}
				fields := make(map[string]string, n)
				for i := range n {
					fields[fmt.Sprintf("k%04d", i)] = "x"
				}
				h.put("a", fields)
				_, others := under(h.keys(), "a")
				h.remove("a")
				require.Equal(t, others, h.keys())
				require.Equal(t, 1, h.removed())
				lines := h.logs.with(t, msgRemoved, "a")
				require.Len(t, lines, 1)
				require.EqualValues(t, n+5, lines[0]["keys_deleted"])
			})
		}
	}
}

func TestS4_HundredsOfNestedNamesAndUnknownFields(t *testing.T) {
	for _, n := range []int{120, 130, 300, 1_500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired("a")
			h.put("a", map[string]string{"!": "x", "m0100": "x", "m0100x": "x", "m0101/": "invalid", "~": "x"})
			h.crowd("a/m%04d", n)
			for i := 950; i < 1_010; i++ { // right behind a nested name, and around the end of a page
				h.put("a", map[string]string{fmt.Sprintf("m%04d0", i): "x"})
			}
			h.put("", map[string]string{"a//x": "invalid", "a/m0005//uuid": "invalid", "a/m0005/": "invalid", "a/m0005/\xff/uuid": "invalid"})
			_, others := under(h.keys(), "a")
			others = append(others, "a/") // no field: nobody's
			h.put("", map[string]string{"a/": "nobody's"})
			slices.Sort(others)
			h.remove("a")
			require.Equal(t, others, h.keys())
		})
	}
}

func TestS4_BigValues(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) { o.BatchSize = 4 })
	h.expired("a", "b", "c")
	h.put("a", map[string]string{"backtrace": strings.Repeat("x", 1<<20)})
	h.put("b", map[string]string{"unknown": strings.Repeat("x", 1<<20)})
	h.expired("a/b")
	h.remove("a", "b", "c")
	require.Len(t, h.keys(), 5)
	require.Equal(t, 3, h.removed())
}

// A known field with a lease makes the lock somebody else's.
func TestS4_LeasedFieldIsNeverRemoved(t *testing.T) {
	for _, field := range []string{"uuid", "auto_unlock_at", "hostname", "backtrace"} {
		for _, big := range []int{1, 64 << 10} {
			t.Run(fmt.Sprint(field, big), func(t *testing.T) {
				h := newHouse(t, sharedClient(t))
				h.expired("a")
				c := h.candidate("a")
				lease, err := h.cli.Grant(h.ctx, 600)
				require.NoError(t, err)
				value := map[string]string{"uuid": c.UUID(), "auto_unlock_at": past.String()}[field]
				_, err = h.cli.Put(h.ctx, h.Layout.Key("a", field), value, clientv3.WithLease(lease.ID))
				require.NoError(t, err)
				h.put("a", map[string]string{"purpose": strings.Repeat("x", big)})
				c = h.candidate("a")
				require.False(t, c.Removable())
				require.NoError(t, h.handle(c))
				require.Empty(t, h.kv.sent())
				require.Equal(t, []postponement{{"a", c.Token, Park}}, h.source.postponed())
			})
		}
	}
}
