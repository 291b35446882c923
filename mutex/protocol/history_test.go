package protocol

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// observation is everything that the methods of a lock return, except Revision and
// Large, which a listing does not know in full.
type observation struct {
	UUID, Hostname, Owner, AutoUnlockText     string
	LockedAt, AlertAt, AutoUnlockAt, AliveAt  Timestamp
	Token, Written                            int64
	Keys                                      int32
	OverdueSince                              Timestamp
	Removable, Renewed                        bool
	Before, AtAlert, Between, AtUnlock, After State
}

// The times that values are drawn from, and times between them.
var nows = [5]Timestamp{noon - 1, noon, noon + 5*second, noon + 10*second, noon + 100*second}

func observe(l Lock) observation {
	o := observation{
		UUID: l.UUID(), Hostname: l.Hostname(), Owner: l.Owner(), AutoUnlockText: l.AutoUnlockText(),
		LockedAt: l.LockedAt(), AlertAt: l.AlertAt(), AutoUnlockAt: l.AutoUnlockAt(), AliveAt: l.AliveAt(),
		Token: l.Token, Keys: l.Keys, OverdueSince: l.OverdueSince(), Removable: l.Removable(),
		Renewed: l.Renewed(),
	}
	if o.AutoUnlockAt != 0 {
		o.Written = l.Written
	}
	for i, s := range []*State{&o.Before, &o.AtAlert, &o.Between, &o.AtUnlock, &o.After} {
		*s = l.State(nows[i])
	}
	return o
}

// model is a lock as docs/protocol.md defines it, with all its keys.
type model struct {
	keys  map[string]KV // by last segment
	large bool
	rev   int64
}

type event struct {
	segment string
	kv      KV // Mod is the revision
	deleted bool
}

// observe returns the expected observation.
func (m *model) observe() observation {
	id, o := m.keys["uuid"], observation{Keys: int32(len(m.keys))}
	o.Token = id.Create
	malformed := false
	for _, kv := range m.keys {
		malformed = malformed || kv.Field != FieldUnknown && kv.Lease != 0 || kv.Field == FieldUnknown && id.Create == 0
	}
	own := func(segment string) (string, bool) {
		kv, ok := m.keys[segment]
		if !ok || id.Create == 0 || kv.Mod < id.Create {
			return "", false
		}
		return string(kv.Value), true
	}
	stamp := func(segment string) (string, Timestamp) {
		v, ok := own(segment)
		if !ok {
			return "", 0
		}
		at, err := ParseTimestamp([]byte(v))
		if err != nil {
			malformed = true
			return "", 0
		}
		return v, at
	}
	if id.Create != 0 {
		if n := len(id.Value); n == 0 || n > 256 {
			malformed = true
		} else {
			o.UUID = string(id.Value)
		}
	}
	o.Hostname, _ = own("hostname")
	o.Owner, _ = own("owner")
	_, o.LockedAt = stamp("locked_at")
	_, o.AlertAt = stamp("alert_at")
	_, o.AliveAt = stamp("alive_at")
	o.AutoUnlockText, o.AutoUnlockAt = stamp("auto_unlock_at")
	if m.keys["alive_at"].Mod != m.keys["auto_unlock_at"].Mod {
		o.AliveAt = 0
	}
	if o.AutoUnlockAt != 0 {
		o.Written = max(id.Mod, m.keys["auto_unlock_at"].Mod)
	}
	_, deadline := own("auto_unlock_at")
	o.Renewed = deadline && m.keys["auto_unlock_at"].Mod > id.Create
	o.Removable = !malformed && (id.Create == 0 || o.AutoUnlockAt != 0)
	if !malformed && id.Create != 0 {
		if o.OverdueSince = o.AlertAt; o.AlertAt == 0 || o.AutoUnlockAt != 0 && o.AutoUnlockAt < o.AlertAt {
			o.OverdueSince = o.AutoUnlockAt
		}
	}
	for i, s := range []*State{&o.Before, &o.AtAlert, &o.Between, &o.AtUnlock, &o.After} {
		switch now := nows[i]; {
		case malformed:
			*s = Malformed
		case id.Create == 0:
			*s = Orphaned
		case o.AutoUnlockAt == 0:
			*s = Undated
		case now >= o.AutoUnlockAt:
			*s = Expired
		case o.AlertAt != 0 && now >= o.AlertAt:
			*s = Overdue
		default:
			*s = Held
		}
	}
	return o
}

// step draws the events of one transaction and applies them to the model.
func (m *model) step(t *rapid.T) []event {
	m.rev++
	var events []event
	put := func(segments ...string) {
		for _, s := range segments {
			kv := KV{Field: ParseField([]byte(s)), Value: value(t, s), Create: m.rev, Mod: m.rev}
			if old, ok := m.keys[s]; ok {
				kv.Create = old.Create
			}
			if rapid.IntRange(0, 30).Draw(t, "lease of "+s) == 0 {
				kv.Lease = 7
			}
			m.keys[s] = kv
			m.large = m.large || len(kv.Value) >= largeValue
			events = append(events, event{segment: s, kv: kv})
		}
	}
	del := func(segments ...string) {
		for _, s := range segments {
			if _, ok := m.keys[s]; ok {
				delete(m.keys, s)
				events = append(events, event{segment: s, kv: KV{Field: ParseField([]byte(s)), Mod: m.rev}, deleted: true})
			}
		}
	}
	some := func(of ...string) []string {
		return slices.DeleteFunc(of, func(s string) bool { return rapid.IntRange(0, 2).Draw(t, s) == 0 })
	}
	switch rapid.SampledFrom([]string{
		"acquire", "acquire bare", "renew", "renew in part", "unlock", "unlock in part", "overwrite uuid", "anything",
	}).Draw(t, "op") {
	case "acquire":
		if m.keys["uuid"].Create == 0 {
			put("uuid", "hostname", "owner", "locked_at", "alert_at", "auto_unlock_at")
		}
	case "acquire bare":
		if m.keys["uuid"].Create == 0 {
			put(append(some("hostname", "locked_at", "alert_at", "alive_at", "auto_unlock_at", "backtrace", "note"), "uuid")...)
		}
	case "renew":
		put("alert_at", "auto_unlock_at", "alive_at")
	case "renew in part":
		put(some("alert_at", "auto_unlock_at", "alive_at")...)
	case "unlock":
		del(slices.Sorted(maps.Keys(m.keys))...)
	case "unlock in part":
		del("uuid")
		del(some(slices.Sorted(maps.Keys(m.keys))...)...)
	case "overwrite uuid":
		put("uuid")
		put(some("auto_unlock_at", "alive_at", "hostname")...)
	case "anything":
		for _, s := range []string{
			"alert_at", "alive_at", "auto_unlock_at", "backtrace", "hostname", "locked_at",
			"owner", "pid", "purpose", "uuid", "note", "694d01", "694d02",
		} {
			switch rapid.IntRange(0, 5).Draw(t, "with "+s) {
			case 0:
				put(s)
			case 1:
				del(s)
			}
		}
	}
	return events
}

var values = map[string]*rapid.Generator[string]{
	"time": rapid.SampledFrom([]string{
		"1700000000", "1700000000", "1700000010", "1700000010", "1700000010.0", "1700000010.5",
		"1700000099.999999999", "2023-11-14T22:13:20Z", "1600000000", "1700000000000", "", "x",
	}),
	"uuid": rapid.SampledFrom([]string{testUUID, "ffffffff-0000-1111-2222-333333333333", "other", "", string(make([]byte, 300))}),
	"text": rapid.SampledFrom([]string{"", "h1", "h2", string(make([]byte, largeValue))}),
	"host": rapid.SampledFrom([]string{"", "h1", "h2"}),
}

func value(t *rapid.T, segment string) []byte {
	kind := "text"
	switch segment {
	case "alert_at", "alive_at", "auto_unlock_at", "locked_at":
		kind = "time"
	case "hostname", "owner":
		kind = "host"
	case "uuid":
		kind = "uuid"
	}
	return []byte(values[kind].Draw(t, segment))
}

func apply(l *Lock, events []event) {
	for _, e := range events {
		if e.deleted {
			l.Delete(e.kv.Field, e.kv.Mod)
		} else {
			l.Put(e.kv)
		}
	}
}

// For any history of a lock, the result is the same and agrees with the protocol
// if it was learned from a watch, in any order within a transaction, from a
// listing, or from a listing and the watch that follows it.
func TestWatchAndListingGiveTheSameLock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{keys: map[string]KV{}}
		ordered, shuffled, resumed := Lock{Name: "a"}, Lock{Name: "a"}, Lock{Name: "a"}
		for i := range rapid.IntRange(1, 12).Draw(t, "transactions") {
			events := m.step(t)
			apply(&ordered, events)
			events = rapid.Permutation(events).Draw(t, "order")
			apply(&shuffled, events)
			apply(&resumed, events)
			at := fmt.Sprintf("after transaction %d", i+1)

			want := m.observe()
			require.Equal(t, want, observe(ordered), "in order, %s", at)
			require.Equal(t, want, observe(shuffled), "shuffled, %s", at)
			require.Equal(t, want, observe(resumed), "listed and watched, %s", at)
			require.Equal(t, ordered.Revision, shuffled.Revision)
			require.Equal(t, m.large, ordered.Large())
			require.Equal(t, m.large, shuffled.Large())

			kvs := rapid.Permutation(slices.Collect(maps.Values(m.keys))).Draw(t, "listed")
			collected := collect("a", kvs)
			require.Equal(t, want, observe(collected), "collected, %s", at)
			require.LessOrEqual(t, collected.Revision, ordered.Revision)
			require.True(t, m.large || !collected.Large())

			if rapid.IntRange(0, 3).Draw(t, "relist") == 0 {
				resumed = collected
			}
		}
	})
}
