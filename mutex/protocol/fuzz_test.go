package protocol

import (
	"bytes"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func FuzzSplit(f *testing.F) {
	for _, rest := range []string{
		"a/uuid", "a/b/uuid", "", "/", "//", "a/", "a//b/uuid", "uuid", "\xff/uuid", "a/\xff", "a/694d8a2b9c3e4f5a",
	} {
		f.Add([]byte("/mutexes/" + rest))
	}
	f.Add([]byte("/mut"))
	l := layout(f, "/mutexes/")
	f.Fuzz(func(t *testing.T, key []byte) {
		name, field, valid := l.Split(key)
		require.Equal(t, valid, ValidateName(string(name)) == nil, "the name of an invalid key is not valid")
		if !valid {
			require.Equal(t, byte('/'), name[0])
			require.Empty(t, field)
			return
		}
		require.True(t, (&Lock{Name: string(name)}).Valid())
		require.NotEmpty(t, field)
		require.NotContains(t, string(field), "/")
		if !bytes.HasPrefix(key, []byte(l.Prefix())) {
			return
		}
		require.Equal(t, string(key), l.Key(string(name), string(field)))
		from, end := l.Range(string(name))
		require.True(t, from <= string(key) && string(key) < end)
		require.True(t, l.Prefix() <= from && end <= l.End())
	})
}

func FuzzParseTimestamp(f *testing.F) {
	for _, v := range []string{
		"1700000000", "1700000000.5", "1700000000.123456789999", "1000000000", "999999999", "8999999999.999999999",
		"9000000000", "1700000000000", "0", "-1", "1e9", " 1", "1.", ".1", "2023-11-14T22:13:20.5+01:00", "2023-11-14T22:13:20Z",
	} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		at, err := ParseTimestamp(v)
		if err != nil {
			require.Zero(t, at)
			return
		}
		require.LessOrEqual(t, len(v), maxTimestampLen)
		require.GreaterOrEqual(t, at, minSeconds*second)
		require.Less(t, at, maxSeconds*second)
		again, err := ParseTimestamp([]byte(at.String()))
		require.NoError(t, err)
		require.Equal(t, at, again)
		again, err = ParseTimestamp([]byte(at.Time().Format(time.RFC3339Nano)))
		require.NoError(t, err)
		require.Equal(t, at, again)
		require.Equal(t, at, TimestampOf(at.Time()))
	})
}

func FuzzClip(f *testing.F) {
	f.Add([]byte("host-1"), uint8(3))
	f.Add([]byte("\xe6\x9d\xb1\xff\xff"), uint8(2))
	f.Fuzz(func(t *testing.T, v []byte, limit uint8) {
		got := Clip(v, int(limit))
		require.True(t, utf8.ValidString(got))
		require.LessOrEqual(t, len(got), int(limit)+len("…"))
		if len(v) <= int(limit) && utf8.Valid(v) {
			require.Equal(t, string(v), got)
		}
	})
}

// FuzzLock decodes its input as puts and deletions, including some that etcd never
// sends: deletions of keys that do not exist, and revisions that decrease.
func FuzzLock(f *testing.F) {
	f.Add([]byte("\x0a\x01\x01\x04uuid\x03\x01\x00\x0a1700000010"), int64(1))
	f.Add([]byte("\x8a\x01\x8a\x02\x80\x03\x00\x00"), int64(noon))
	f.Add([]byte("\x05\x02\xff\xff\xff\xff\x06\x02\x10\x011"), int64(-1))
	f.Fuzz(func(t *testing.T, in []byte, now int64) {
		l, rev := Lock{Name: "a"}, int64(1)
		var b Builder
		for len(in) >= 4 {
			field, deleted := Field(in[0]&0x7f)%Field(len(fieldNames)), in[0]&0x80 != 0
			rev += int64(int8(in[1]))
			kv := KV{Field: field, Mod: rev, Create: rev - int64(in[2]&0xf), Lease: int64(in[2] >> 4)}
			n := min(int(in[3]), len(in)-4)
			kv.Value, in = in[4:4+n], in[4+n:]
			if deleted {
				l.Delete(field, rev)
			} else {
				l.Put(kv)
				b.Add(kv)
			}
			requireBounded(t, l, Timestamp(now))
		}
		requireBounded(t, b.Lock("a"), Timestamp(now))
	})
}

func requireBounded(t *testing.T, l Lock, now Timestamp) {
	t.Helper()
	state := l.State(now)
	require.Less(t, state, NumStates)
	require.LessOrEqual(t, len(l.UUID()), maxUUIDLen)
	require.LessOrEqual(t, len(l.Hostname()), maxLabelLen+len("…"))
	require.LessOrEqual(t, len(l.Owner()), maxLabelLen+len("…"))
	require.LessOrEqual(t, len(l.AutoUnlockText()), maxTimestampLen)
	require.Equal(t, l.AutoUnlockAt().IsZero(), l.AutoUnlockText() == "")
	for _, at := range []Timestamp{l.LockedAt(), l.AlertAt(), l.AutoUnlockAt(), l.AliveAt()} {
		require.True(t, at.IsZero() || minSeconds*second <= at && at < maxSeconds*second)
	}
	switch state {
	case Malformed, Undated:
		require.False(t, l.Removable())
	default:
		require.True(t, l.Removable())
	}
}
