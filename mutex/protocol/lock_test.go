package protocol

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// noon is the present time in the tests.
const (
	noon   = Timestamp(1_700_000_000) * second
	second = Timestamp(time.Second)
)

const testUUID = "0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab"

// txn is what one transaction puts and deletes, by the last segment of the keys. A
// segment that ends in "!" is put with a lease.
type txn struct {
	put map[string]string
	del []string
}

// history applies transactions as a watch shows them, the first one at revision 1,
// and returns the lock together with the keys that remain.
func history(t testing.TB, txns ...txn) (Lock, []KV) {
	t.Helper()
	l, keys := Lock{Name: "a"}, map[string]KV{}
	for i, tx := range txns {
		rev := int64(i + 1)
		for _, segment := range tx.del {
			_, exists := keys[segment]
			require.True(t, exists, "delete of %s", segment)
			delete(keys, segment)
			l.Delete(ParseField([]byte(segment)), rev)
		}
		for segment, v := range tx.put {
			segment, leased := strings.CutSuffix(segment, "!")
			kv := KV{Field: ParseField([]byte(segment)), Value: []byte(v), Create: rev, Mod: rev}
			if old, exists := keys[segment]; exists {
				kv.Create = old.Create
			}
			if leased {
				kv.Lease = 7
			}
			keys[segment] = kv
			l.Put(kv)
		}
	}
	kvs := make([]KV, 0, len(keys))
	for _, kv := range keys {
		kvs = append(kvs, kv)
	}
	return l, kvs
}

// acquired is the transaction of a client that acquires a lock with alert_at at noon
// and auto_unlock_at ten seconds later. changes are pairs of a field and its value,
// where "-" omits the field.
func acquired(changes ...string) txn {
	put := map[string]string{
		"uuid": testUUID, "hostname": "h1", "owner": "svc",
		"locked_at": "1699999990", "alert_at": "1700000000", "auto_unlock_at": "1700000010",
	}
	for i := 0; i < len(changes); i += 2 {
		if put[changes[i]] = changes[i+1]; changes[i+1] == "-" {
			delete(put, changes[i])
		}
	}
	return txn{put: put}
}

func TestLockIsSmall(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Lock{}), uintptr(136), "the table keeps a million of them")
}

func TestLockKeepsNoBigValues(t *testing.T) {
	const megabyte = 1 << 20
	for f := FieldUnknown; int(f) < len(fieldNames); f++ {
		t.Run(f.String(), func(t *testing.T) {
			for _, v := range []string{strings.Repeat("x", megabyte), strings.Repeat("é\xff", megabyte/3)} {
				var l Lock
				l.Put(KV{Field: FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
				l.Put(KV{Field: f, Value: []byte(v), Create: 1, Mod: 1})
				require.True(t, l.Large())
				require.LessOrEqual(t, len(l.Hostname()), 256)
				require.LessOrEqual(t, len(l.Owner()), 256)
				require.LessOrEqual(t, len(l.UUID()), 256)
				require.LessOrEqual(t, len(l.AutoUnlockText()), 64)
				require.LessOrEqual(t, len(l.rarely().autoText), 64)
			}
		})
	}
}

func TestLarge(t *testing.T) {
	for size, want := range map[int]bool{0: false, largeValue - 1: false, largeValue: true} {
		for _, f := range []Field{FieldBacktrace, FieldUnknown} {
			kv := KV{Field: f, Value: make([]byte, size), Create: 1, Mod: 1}
			var l Lock
			l.Put(kv)
			require.Equal(t, want, l.Large())
			collected := collect("a", []KV{kv})
			require.Equal(t, want, collected.Large())
		}
	}
}

// A listing shows the keys of a lock in their order, so the large one is not the last of them.
func TestLargeWhicheverKeyIs(t *testing.T) {
	kvs := []KV{
		{Field: FieldBacktrace, Value: make([]byte, largeValue), Create: 1, Mod: 1},
		{Field: FieldUUID, Value: []byte("u"), Create: 1, Mod: 1},
	}
	for range 2 {
		l := collect("a", kvs)
		require.True(t, l.Large())
		slices.Reverse(kvs)
	}
}

func TestSameFields(t *testing.T) {
	l, _ := history(t, acquired())
	renewed, _ := history(t, acquired(), txn{put: map[string]string{"auto_unlock_at": "1700000060"}})
	more, _ := history(t, acquired("pid", "4711"))
	unknown, _ := history(t, acquired("note", "x"))
	require.True(t, l.SameFields(&renewed))
	require.True(t, l.SameFields(&unknown), "which is not a field of the protocol")
	require.False(t, l.SameFields(&more))
	require.False(t, more.SameFields(&l))
}

func TestValuesAreCopied(t *testing.T) {
	kvs := []KV{
		{Field: FieldUUID, Value: []byte("token-1"), Create: 1, Mod: 1},
		{Field: FieldHostname, Value: []byte("h1"), Create: 1, Mod: 1},
		{Field: FieldAutoUnlockAt, Value: []byte("1700000010.0"), Create: 1, Mod: 1},
	}
	l := Lock{Name: "a"}
	for _, kv := range kvs {
		l.Put(kv)
	}
	collected := collect("a", kvs)
	for _, kv := range kvs {
		clear(kv.Value)
	}
	for _, l := range []Lock{l, collected} {
		require.Equal(t, "token-1", l.UUID())
		require.Equal(t, "h1", l.Hostname())
		require.Equal(t, "1700000010.0", l.AutoUnlockText())
	}
}

func TestAccessors(t *testing.T) {
	l, _ := history(t, acquired("pid", "4711", "backtrace", "main()", "note", "x"))
	require.Equal(t, testUUID, l.UUID())
	require.Equal(t, "h1", l.Hostname())
	require.Equal(t, "svc", l.Owner())
	require.Equal(t, noon-10*second, l.LockedAt())
	require.Equal(t, noon, l.AlertAt())
	require.Equal(t, noon+10*second, l.AutoUnlockAt())
	require.Zero(t, l.AliveAt())
	require.EqualValues(t, 1, l.Token)
	require.EqualValues(t, 1, l.Revision)
	require.EqualValues(t, 9, l.Keys)
	require.False(t, l.Large())

	var none Lock
	require.Empty(t, none.UUID()+none.Hostname()+none.Owner()+none.AutoUnlockText())
	require.Zero(t, none.LockedAt()+none.AlertAt()+none.AutoUnlockAt()+none.AliveAt()+none.OverdueSince())
}

func TestAutoUnlockTextIsTheValueAsWritten(t *testing.T) {
	for _, v := range []string{
		"1700000010", "1700000010.5", "1700000010.50", "1700000010.0", "0001700000010",
		"1700000010.123456789999", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20.5+01:00",
	} {
		l, kvs := history(t, acquired("auto_unlock_at", v))
		require.Equal(t, v, l.AutoUnlockText())
		collected := collect("a", kvs)
		require.Equal(t, v, collected.AutoUnlockText())
	}
	l, _ := history(t,
		acquired("auto_unlock_at", "2023-11-14T22:13:20Z"),
		txn{put: map[string]string{"auto_unlock_at": "1700000010"}})
	require.Equal(t, "1700000010", l.AutoUnlockText())
	require.Nil(t, l.rare)
}

// Nothing is kept of a value that could not be read once it is replaced or deleted.
func TestNoFaultIsKeptOfWhatIsOver(t *testing.T) {
	for _, over := range []txn{{put: map[string]string{"alert_at": "1700000000"}}, {del: []string{"alert_at"}}} {
		l, _ := history(t, acquired("alert_at", "soon"))
		require.NotNil(t, l.rare)
		l, _ = history(t, acquired("alert_at", "soon"), over)
		require.Nil(t, l.rare)
	}
}

// What a lock is for and how far it is are shown in pages, and do not outlive their holder.
func TestPurposeAndStatus(t *testing.T) {
	long := strings.Repeat("x", 300)
	l, kvs := history(t,
		acquired("purpose", "nightly run", "status", "0 %"),
		txn{put: map[string]string{"auto_unlock_at": "1700000060", "status": "50 %"}})
	for _, l := range []Lock{l, collect("a", kvs)} {
		require.Equal(t, "nightly run", l.Text(FieldPurpose))
		require.Equal(t, "50 %", l.Text(FieldStatus))
	}
	l, _ = history(t, acquired("status", long))
	require.Empty(t, l.Text(FieldPurpose))
	require.Equal(t, Clip([]byte(long), maxLabelLen), l.Text(FieldStatus))
	l, _ = history(t, acquired("purpose", "old"), txn{del: []string{"uuid"}}, txn{put: map[string]string{"uuid": "other"}})
	require.Empty(t, l.Text(FieldPurpose), "another holder's")
}

func TestOverdueSince(t *testing.T) {
	for _, tc := range []struct {
		name string
		txn  txn
		want Timestamp
	}{
		{"alert_at", acquired(), noon},
		{"no alert_at", acquired("alert_at", "-"), noon + 10*second},
		{"no auto_unlock_at", acquired("auto_unlock_at", "-"), noon},
		{"auto_unlock_at first", acquired("auto_unlock_at", "1699999000"), 1699999000 * second},
		{"neither", acquired("alert_at", "-", "auto_unlock_at", "-"), 0},
		{"malformed", acquired("alert_at", "soon"), 0},
		{"orphan", acquired("uuid", "-"), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, _ := history(t, tc.txn)
			require.Equal(t, tc.want, l.OverdueSince())
		})
	}
}
