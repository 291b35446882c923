package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A deadline that is newer than the uuid was renewed, whether a watch or a listing
// shows it.
func TestRenewed(t *testing.T) {
	put := func(f Field, create, mod int64) KV {
		value := "1700000000"
		if f == FieldUUID {
			value = testUUID
		}
		return KV{Field: f, Value: []byte(value), Create: create, Mod: mod}
	}
	for name, c := range map[string]struct {
		kvs  []KV // in the order of the watch
		want bool
	}{
		"acquired":                    {[]KV{put(FieldAutoUnlockAt, 5, 5), put(FieldUUID, 5, 5)}, false},
		"acquired, uuid first":        {[]KV{put(FieldUUID, 5, 5), put(FieldAutoUnlockAt, 5, 5)}, false},
		"renewed":                     {[]KV{put(FieldUUID, 5, 5), put(FieldAutoUnlockAt, 5, 6)}, true},
		"deadline added later":        {[]KV{put(FieldUUID, 5, 5), put(FieldAutoUnlockAt, 6, 6)}, true},
		"alive_at alone":              {[]KV{put(FieldAutoUnlockAt, 5, 5), put(FieldUUID, 5, 5), put(FieldAliveAt, 6, 6)}, false},
		"uuid overwritten, not newer": {[]KV{put(FieldAutoUnlockAt, 5, 5), put(FieldUUID, 5, 7)}, false},
		"left by an earlier holder":   {[]KV{put(FieldAutoUnlockAt, 3, 4), put(FieldUUID, 5, 5)}, false},
		"orphan":                      {[]KV{put(FieldAutoUnlockAt, 3, 4)}, false},
		"undated":                     {[]KV{put(FieldUUID, 5, 5)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var watched Lock
			for _, kv := range c.kvs {
				watched.Put(kv)
			}
			listed := collect("a", c.kvs)
			require.Equal(t, c.want, watched.Renewed(), "by Put")
			require.Equal(t, c.want, listed.Renewed(), "by Builder")
		})
	}
}

func TestRenewedEndsWithItsHolder(t *testing.T) {
	renewed := func() Lock {
		var l Lock
		l.Put(KV{Field: FieldAutoUnlockAt, Value: []byte("1700000000"), Create: 5, Mod: 5})
		l.Put(KV{Field: FieldUUID, Value: []byte(testUUID), Create: 5, Mod: 5})
		l.Put(KV{Field: FieldAutoUnlockAt, Value: []byte("1700000010"), Create: 5, Mod: 6})
		require.True(t, l.Renewed())
		return l
	}
	l := renewed()
	l.Delete(FieldAutoUnlockAt, 7)
	require.False(t, l.Renewed(), "no deadline")
	l = renewed()
	l.Delete(FieldUUID, 7)
	require.False(t, l.Renewed(), "no holder")
	l.Put(KV{Field: FieldUUID, Value: []byte(testUUID), Create: 8, Mod: 8})
	require.False(t, l.Renewed(), "left by an earlier holder")
}
