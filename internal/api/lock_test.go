package api

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestNewLock(t *testing.T) {
	var b protocol.Builder
	for f, value := range map[protocol.Field]string{protocol.FieldUUID: "u", protocol.FieldHostname: "h", protocol.FieldAutoUnlockAt: "1800000000.5"} {
		b.Add(protocol.KV{Field: f, Value: []byte(value), Create: 7, Mod: 7})
	}
	l := b.Lock("billing/invoices")
	deadline := time.Unix(1_800_000_000, 5e8).UTC()
	for state, now := range map[string]time.Time{"held": deadline.Add(-time.Second), "expired": deadline} {
		require.Equal(t, Lock{Name: "billing/invoices", State: state, UUID: "u", Hostname: "h", AutoUnlockAt: deadline,
			Token: 7, Revision: 7, Keys: 3}, NewLock(&l, now, 0))
	}
	text, err := json.Marshal(NewLock(&l, deadline, 0))
	require.NoError(t, err)
	require.JSONEq(t, `{"name": "billing/invoices", "state": "expired", "uuid": "u", "hostname": "h",
		"auto_unlock_at": "2027-01-15T08:00:00.5Z", "token": 7, "revision": 7, "keys": 3}`, string(text), "what there is not is left out")
}

// The state is by the holder's clock.
func TestNewLockOfAHolderWhoseClockIsOff(t *testing.T) {
	var b protocol.Builder
	for f, value := range map[protocol.Field]string{protocol.FieldUUID: "u", protocol.FieldAutoUnlockAt: "1800000000"} {
		b.Add(protocol.KV{Field: f, Value: []byte(value), Create: 7, Mod: 7})
	}
	l, deadline := b.Lock("a"), time.Unix(1_800_000_000, 0)
	for ahead, state := range map[time.Duration]string{-1500 * time.Millisecond: "held", 0: "expired", time.Minute: "expired"} {
		got := NewLock(&l, deadline.Add(time.Second), ahead)
		require.Equal(t, state, got.State)
		require.Equal(t, ahead.Seconds(), got.ClockOffset)
		require.Equal(t, deadline.Add(-ahead), got.Corrected(deadline))
		require.Zero(t, got.Corrected(got.AlertAt))
	}
	got := NewLock(&l, deadline.Add(-time.Second), 1500*time.Millisecond)
	require.Equal(t, "expired", got.State)
}

func TestNewLockBoundsTheName(t *testing.T) {
	l := protocol.Lock{Name: "/\xff" + strings.Repeat("x", 1<<20)}
	name := NewLock(&l, time.Now(), 0).Name
	require.LessOrEqual(t, len(name), maxName+len("…"))
	require.True(t, strings.HasPrefix(name, "/\uFFFDxxx"))
}

func TestStates(t *testing.T) {
	require.Equal(t, []string{"held", "overdue", "expired", "undated", "malformed", "orphaned"}, States())
	require.Equal(t, []string{"expired", "overdue", "malformed", "undated", "orphaned", "held"}, StatesByUrgency())
	require.ElementsMatch(t, States(), StatesByUrgency())
}
