package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The unlock of the article that introduced the protocol deletes three keys only.
// The keys that remain must not give the next holder a deadline.
func TestLeftoversAreNotRead(t *testing.T) {
	leftover := []txn{
		acquired("alive_at", "1699999995"),
		{del: []string{"uuid", "hostname", "locked_at"}},
	}
	next := txn{put: map[string]string{"uuid": "next"}}

	l, kvs := history(t, append(leftover, next)...)
	for _, l := range []Lock{l, collect("a", kvs)} {
		require.Equal(t, Undated, l.State(noon+1000*second))
		require.Equal(t, "next", l.UUID())
		require.EqualValues(t, 3, l.Token)
		require.EqualValues(t, 5, l.Keys)
		require.Empty(t, l.Hostname()+l.Owner()+l.AutoUnlockText())
		require.Zero(t, l.LockedAt()+l.AlertAt()+l.AutoUnlockAt()+l.AliveAt()+l.OverdueSince())
		require.False(t, l.Removable())
	}

	renewed := txn{put: map[string]string{"auto_unlock_at": "1700000030"}}
	l, kvs = history(t, append(leftover, next, renewed)...)
	for _, l := range []Lock{l, collect("a", kvs)} {
		require.Equal(t, noon+30*second, l.AutoUnlockAt())
		require.Zero(t, l.AlertAt())
		require.Equal(t, Held, l.State(noon+29*second), "alert_at is a leftover")
	}
}

func TestUnreadableLeftoverDoesNotMatter(t *testing.T) {
	l, _ := history(t,
		acquired("alert_at", "noon"),
		txn{del: []string{"uuid"}},
		acquired("alert_at", "-"))
	require.Equal(t, Held, l.State(noon))
}

func TestOrderWithinATransactionDoesNotMatter(t *testing.T) {
	first := []KV{
		{Field: FieldAlertAt, Value: []byte("1700000000"), Create: 2, Mod: 2},
		{Field: FieldAutoUnlockAt, Value: []byte("1600000000"), Create: 2, Mod: 2},
	}
	acquisition := []KV{
		{Field: FieldUUID, Value: []byte("u"), Create: 3, Mod: 3},
		{Field: FieldAutoUnlockAt, Value: []byte("1700000010"), Create: 2, Mod: 3},
		{Field: FieldAliveAt, Value: []byte("1699999990"), Create: 3, Mod: 3},
	}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		l := Lock{Name: "a"}
		for _, kv := range first {
			l.Put(kv)
		}
		for _, i := range order {
			l.Put(acquisition[i])
		}
		require.Equal(t, noon+10*second, l.AutoUnlockAt())
		require.Equal(t, noon-10*second, l.AliveAt())
		require.Zero(t, l.AlertAt())
		require.EqualValues(t, 4, l.Keys)
	}
}

func TestAliveAtCountsWithItsDeadlineOnly(t *testing.T) {
	renewal := func(fields ...string) txn {
		put := map[string]string{}
		for i := 0; i < len(fields); i += 2 {
			put[fields[i]] = fields[i+1]
		}
		return txn{put: put}
	}
	const alive, auto = "alive_at", "auto_unlock_at"
	for _, tc := range []struct {
		name string
		txns []txn
		want Timestamp
	}{
		{"never renewed", []txn{acquired()}, 0},
		{"with the acquisition", []txn{acquired(alive, "1699999990")}, noon - 10*second},
		{"with the deadline", []txn{acquired(), renewal(alive, "1700000001", auto, "1700000020")}, noon + second},
		{"the same values again", []txn{acquired(), renewal(alive, "1700000001", auto, "1700000010")}, noon + second},
		{"alone", []txn{acquired(), renewal(alive, "1700000001")}, 0},
		{"deadline moved later", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), renewal(auto, "1700000030"),
		}, 0},
		{"alive_at written later", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), renewal(alive, "1700000002"),
		}, 0},
		{"another field written later", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), renewal("owner", "x"),
		}, noon + second},
		{"uuid overwritten later", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), renewal("uuid", "x"),
		}, noon + second},
		{"uuid overwritten in the renewal", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020", "uuid", "x"),
		}, noon + second},
		{"deadline deleted", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), {del: []string{auto}},
		}, 0},
		{"deadline deleted and written", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), {del: []string{auto}}, renewal(auto, "1700000020"),
		}, 0},
		{"alive_at deleted", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), {del: []string{alive}},
		}, 0},
		{"renewed properly again", []txn{
			acquired(), renewal(alive, "1700000001"), renewal(alive, "1700000002", auto, "1700000020"),
		}, noon + 2*second},
		{"leftover of an earlier holder", []txn{
			acquired(), renewal(alive, "1700000001", auto, "1700000020"), {del: []string{"uuid"}}, renewal("uuid", "x"),
		}, 0},
		{"no uuid", []txn{renewal(alive, "1700000001", auto, "1700000020")}, 0},
		{"unreadable", []txn{acquired(), renewal(alive, "x", auto, "1700000020")}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, kvs := history(t, tc.txns...)
			require.Equal(t, tc.want, l.AliveAt())
			collected := collect("a", kvs)
			require.Equal(t, tc.want, collected.AliveAt())
		})
	}
}

func TestRevisionAndKeys(t *testing.T) {
	l, kvs := history(t, acquired("note", "x"),
		txn{put: map[string]string{"auto_unlock_at": "1700000020"}},
		txn{del: []string{"note"}})
	require.EqualValues(t, 3, l.Revision)
	require.EqualValues(t, 6, l.Keys)
	collected := collect("a", kvs)
	require.EqualValues(t, 2, collected.Revision, "a listing shows no deletion")
	require.EqualValues(t, 6, collected.Keys)
}

func TestPutAfterCollect(t *testing.T) {
	_, kvs := history(t, acquired(), txn{put: map[string]string{"uuid": "over"}})
	l := collect("a", kvs)
	require.EqualValues(t, 2, l.Revision)
	require.Equal(t, "over", l.UUID())
	l.Put(KV{Field: FieldAutoUnlockAt, Value: []byte("1700000050"), Create: 1, Mod: 3})
	l.Put(KV{Field: FieldAliveAt, Value: []byte("1700000040"), Create: 3, Mod: 3})
	require.Equal(t, noon+50*second, l.AutoUnlockAt())
	require.Equal(t, noon+40*second, l.AliveAt())
	require.EqualValues(t, 1, l.Token)
	require.EqualValues(t, 7, l.Keys)
}

func TestCollectLeavesItsInputAlone(t *testing.T) {
	kvs := []KV{
		{Field: FieldUUID, Value: []byte("u"), Create: 3, Mod: 9},
		{Field: FieldAlertAt, Value: []byte("1700000000"), Create: 1, Mod: 2},
		{Field: FieldBacktrace, Value: []byte("main()"), Create: 3, Mod: 3},
	}
	want := append([]KV(nil), kvs...)
	collect("a", kvs)
	require.Equal(t, want, kvs)
}

func TestBuilderIsReusable(t *testing.T) {
	var b Builder
	b.Add(KV{Field: FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
	b.Add(KV{Field: FieldUnknown, Value: make([]byte, largeValue), Create: 1, Mod: 4, Lease: 7})
	first := b.Lock("a")
	require.EqualValues(t, 2, first.Keys)
	require.Equal(t, Undated, first.State(noon))
	require.True(t, first.Large())

	b.Add(KV{Field: FieldUUID, Value: []byte("v"), Create: 3, Mod: 3})
	b.Add(KV{Field: FieldUUID, Value: []byte("v"), Create: 3, Mod: 3})
	second := b.Lock("b")
	require.Equal(t, "v", second.UUID())
	require.EqualValues(t, 1, second.Keys, "a key that is listed twice counts once")
	require.EqualValues(t, 3, second.Revision)
	require.Equal(t, Undated, second.State(noon))
	require.False(t, second.Large())
}

// collect returns the lock that the keys of a listing make.
func collect(name string, kvs []KV) Lock {
	var b Builder
	for _, kv := range kvs {
		b.Add(kv)
	}
	return b.Lock(name)
}
