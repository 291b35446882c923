package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStateString(t *testing.T) {
	var got []string
	for s := Held; s <= NumStates+1; s++ {
		got = append(got, s.String())
	}
	require.Equal(t, []string{
		"held", "overdue", "expired", "undated", "malformed", "orphaned", "invalid", "invalid",
	}, got)
}

func TestStateOverTime(t *testing.T) {
	for _, tc := range []struct {
		name string
		txn  txn
		want map[Timestamp]State
	}{
		{"dated", acquired(), map[Timestamp]State{
			0: Held, noon - 1: Held,
			noon: Overdue, noon + 10*second - 1: Overdue,
			noon + 10*second: Expired, noon + 1000*second: Expired,
		}},
		{"no alert_at", acquired("alert_at", "-"), map[Timestamp]State{
			noon: Held, noon + 10*second - 1: Held, noon + 10*second: Expired,
		}},
		{"alert_at after auto_unlock_at", acquired("alert_at", "1700000020"), map[Timestamp]State{
			noon + 10*second - 1: Held, noon + 10*second: Expired, noon + 20*second: Expired,
		}},
		{"both at once", acquired("alert_at", "1700000010"), map[Timestamp]State{
			noon + 10*second - 1: Held, noon + 10*second: Expired,
		}},
		{"a nanosecond", acquired("auto_unlock_at", "1700000000.000000001"), map[Timestamp]State{
			noon: Overdue, noon + 1: Expired,
		}},
		{"undated", acquired("auto_unlock_at", "-"), map[Timestamp]State{
			0: Undated, noon: Undated, noon + 1000*second: Undated,
		}},
		{"orphan", acquired("uuid", "-"), map[Timestamp]State{
			0: Orphaned, noon + 1000*second: Orphaned,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, kvs := history(t, tc.txn)
			collected := collect("a", kvs)
			for now, want := range tc.want {
				require.Equal(t, want, l.State(now), "at %v", now)
				require.Equal(t, want, collected.State(now), "at %v", now)
			}
		})
	}
}

// A malformed lock says which fields cannot be read, their values, and what its client probably wrote, also after a
// listing, and as long as it is malformed.
func TestFault(t *testing.T) {
	const outside = "outside [1000000000, 9000000000) seconds since the epoch"
	for _, tc := range []struct {
		txns []txn
		want string
	}{
		{[]txn{acquired()}, ""},
		{[]txn{acquired("auto_unlock_at", "-")}, ""},
		{[]txn{acquired("auto_unlock_at", "soon\n\u202e")}, `auto_unlock_at is "soon\n\u202e": neither seconds since the epoch nor RFC 3339`},
		{[]txn{acquired("auto_unlock_at", "1795446468704")}, `auto_unlock_at is "1795446468704": it looks like milliseconds, and the unit is seconds`},
		{[]txn{acquired("auto_unlock_at", "1000000000000")}, `auto_unlock_at is "1000000000000": it looks like milliseconds, and the unit is seconds`},
		{[]txn{acquired("auto_unlock_at", "9000000000000")}, `auto_unlock_at is "9000000000000": ` + outside},
		{[]txn{acquired("auto_unlock_at", "1795446468704000")}, `auto_unlock_at is "1795446468704000": it looks like microseconds, and the unit is seconds`},
		{[]txn{acquired("alive_at", "1795446468704000000")}, `alive_at is "1795446468704000000": it looks like nanoseconds, and the unit is seconds`},
		{[]txn{acquired("alert_at", "", "locked_at", "0")}, `alert_at is "": neither seconds since the epoch nor RFC 3339; locked_at is "0": ` + outside},
		{[]txn{acquired("alert_at", "")}, `alert_at is "": neither seconds since the epoch nor RFC 3339`},
		{[]txn{acquired("uuid", strings.Repeat("u", 300))}, `uuid is "` + strings.Repeat("u", 64) + `…": not 1 to 256 bytes`},
		{[]txn{acquired("alert_at", "x", "locked_at", "y"), {put: map[string]string{"alert_at": "1700000000"}}}, `locked_at is "y": neither seconds since the epoch nor RFC 3339`},
		{[]txn{acquired("alert_at", "x"), {del: []string{"alert_at"}}}, ""},
		{[]txn{{put: map[string]string{"alert_at": "x"}}, acquired("alert_at", "-")}, ""}, // left by an earlier holder
		{[]txn{{put: map[string]string{"native": "x"}}}, "there is no uuid, but there are keys that a lock does not leave behind"},
	} {
		l, kvs := history(t, tc.txns...)
		listed := collect("a", kvs)
		require.Equal(t, []string{tc.want, tc.want}, []string{l.Fault(), listed.Fault()})
		require.Equal(t, tc.want != "", l.State(noon) == Malformed)
	}
	l := Lock{Name: "a"}
	l.Put(KV{Field: FieldUUID, Value: []byte("u"), Create: 1, Mod: 1, Lease: 1})
	require.Equal(t, "uuid has a lease, as no field of a lock has", l.Fault())
	l = Lock{Name: "/a"}
	l.Put(KV{Field: FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
	require.Equal(t, "its name cannot be the name of a lock", l.Fault())
}

func TestStateAtAnyTime(t *testing.T) {
	const native = "694d8a2b9c3e4f5a"
	for _, tc := range []struct {
		name      string
		txns      []txn
		want      State
		removable bool
	}{
		{"held", []txn{acquired()}, Held, true},
		{"only a uuid", []txn{{put: map[string]string{"uuid": "u"}}}, Undated, false},
		{"undated", []txn{acquired("auto_unlock_at", "-")}, Undated, false},
		{"unknown field of a lock", []txn{acquired("note", "x")}, Held, true},

		{"auto_unlock_at in milliseconds", []txn{acquired("auto_unlock_at", "1700000010000")}, Malformed, false},
		{"auto_unlock_at empty", []txn{acquired("auto_unlock_at", "")}, Malformed, false},
		{"auto_unlock_at zero", []txn{acquired("auto_unlock_at", "0")}, Malformed, false},
		{"alert_at unreadable", []txn{acquired("alert_at", "noon")}, Malformed, false},
		{"alive_at unreadable", []txn{acquired("alive_at", "noon")}, Malformed, false},
		{"locked_at unreadable", []txn{acquired("locked_at", "noon")}, Malformed, false},
		{"corrected", []txn{
			acquired("alert_at", "noon"),
			{put: map[string]string{"alert_at": "1800000000"}},
		}, Held, true},
		{"the unreadable field deleted", []txn{acquired("alert_at", "noon"), {del: []string{"alert_at"}}}, Held, true},
		{"broken by a renewal", []txn{acquired(), {put: map[string]string{"auto_unlock_at": "NaN"}}}, Malformed, false},

		{"field with a lease", []txn{acquired("owner", "-", "owner!", "svc")}, Malformed, false},
		{"uuid with a lease", []txn{acquired("uuid", "-", "uuid!", "u")}, Malformed, false},
		{"lease removed", []txn{
			acquired("owner", "-", "owner!", "svc"), {put: map[string]string{"owner": "svc"}},
		}, Held, true},
		{"leased field deleted", []txn{acquired("pid!", "1"), {del: []string{"pid"}}}, Held, true},
		{"leftover with a lease", []txn{{put: map[string]string{"pid!": "1"}}, acquired()}, Malformed, false},
		{"orphan with a lease", []txn{{put: map[string]string{"alive_at!": "1700000000"}}}, Malformed, false},

		{"native mutex", []txn{{put: map[string]string{native + "!": ""}}}, Malformed, false},
		{"native mutex without a lease", []txn{{put: map[string]string{native: ""}}}, Malformed, false},
		{"native mutex under a lock's name", []txn{acquired(native+"!", "")}, Held, true},
		{"lock under a native mutex's name", []txn{{put: map[string]string{native + "!": ""}}, acquired()}, Held, true},

		{"orphan", []txn{acquired(), {del: []string{"uuid", "hostname", "owner", "locked_at"}}}, Orphaned, true},
		{"orphan of a blind renewal", []txn{
			{put: map[string]string{"alert_at": "1700000000", "auto_unlock_at": "1700000010", "alive_at": "1699999999"}},
		}, Orphaned, true},
		{"orphan with an unreadable time", []txn{{put: map[string]string{"alert_at": "noon"}}}, Orphaned, true},
		{"orphan with an unknown field", []txn{
			{put: map[string]string{"alert_at": "1700000000", "note": "x"}},
		}, Malformed, false},
		{"orphan that lost its unknown field", []txn{
			{put: map[string]string{"alert_at": "1700000000", "note": "x"}}, {del: []string{"note"}},
		}, Orphaned, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, _ := history(t, tc.txns...)
			require.Equal(t, tc.want, l.State(noon-second))
			require.Equal(t, tc.removable, l.Removable())
		})
	}
}

func TestInvalidKeysAreMalformed(t *testing.T) {
	layout := layout(t, "/mutexes/")
	for _, key := range []string{"/mutexes/", "/mutexes/uuid", "/mutexes//uuid", "/mutexes/a/", "/mutexes/\xff/uuid"} {
		name, field, _ := layout.Split([]byte(key))
		kv := KV{Field: ParseField(field), Create: 1, Mod: 1}
		l := Lock{Name: string(name)}
		l.Put(kv)
		collected := collect(string(name), []KV{kv})
		for _, l := range []Lock{l, collected} {
			require.Equal(t, Malformed, l.State(noon), "%q", key)
			require.False(t, l.Removable(), "%q", key)
			require.Zero(t, l.OverdueSince(), "%q", key)
		}
	}
	require.False(t, (&Lock{}).Valid())
}
