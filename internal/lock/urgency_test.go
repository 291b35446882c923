package lock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

func TestUrgency(t *testing.T) {
	times := func(pairs ...string) lock.Lock {
		b := lock.Builder{}
		b.Add(lock.KV{Field: lock.FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
		for i := 0; i < len(pairs); i += 2 {
			b.Add(lock.KV{Field: lock.ParseField([]byte(pairs[i])), Value: []byte(pairs[i+1]), Create: 1, Mod: 1})
		}
		return b.Lock("a")
	}
	all := times("locked_at", "1000000001", "alert_at", "1000000002", "auto_unlock_at", "1000000003")
	for _, c := range []struct {
		l     lock.Lock
		state lock.State
		rank  byte
		at    lock.Timestamp
	}{
		{all, lock.Expired, 1, 1000000003},
		{all, lock.Overdue, 2, 1000000003},
		{times("alert_at", "1000000002"), lock.Overdue, 2, 1000000002},
		{times("locked_at", "1000000001", "auto_unlock_at", "soon"), lock.Malformed, 3, 1000000001},
		{times("locked_at", "1000000001"), lock.Undated, 4, 1000000001},
		{times(), lock.Undated, 4, 0},
		{times(), lock.Orphaned, 5, 0},
		{all, lock.Held, 6, 1000000002},
		{times("locked_at", "1000000001", "auto_unlock_at", "1000000003"), lock.Held, 6, 1000000003},
	} {
		rank, at := c.l.Urgency(c.state)
		require.Equal(t, c.rank, rank, c.state)
		require.Equal(t, c.at*lock.Timestamp(time.Second), at, c.state)
	}
}
