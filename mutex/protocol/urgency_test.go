package protocol_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestUrgency(t *testing.T) {
	times := func(pairs ...string) protocol.Lock {
		b := protocol.Builder{}
		b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
		for i := 0; i < len(pairs); i += 2 {
			b.Add(protocol.KV{Field: protocol.ParseField([]byte(pairs[i])), Value: []byte(pairs[i+1]), Create: 1, Mod: 1})
		}
		return b.Lock("a")
	}
	all := times("locked_at", "1000000001", "alert_at", "1000000002", "auto_unlock_at", "1000000003")
	for _, c := range []struct {
		l     protocol.Lock
		state protocol.State
		rank  byte
		at    protocol.Timestamp
	}{
		{all, protocol.Expired, 1, 1000000003},
		{all, protocol.Overdue, 2, 1000000003},
		{times("alert_at", "1000000002"), protocol.Overdue, 2, 1000000002},
		{times("locked_at", "1000000001", "auto_unlock_at", "soon"), protocol.Malformed, 3, 1000000001},
		{times("locked_at", "1000000001"), protocol.Undated, 4, 1000000001},
		{times(), protocol.Undated, 4, 0},
		{times(), protocol.Orphaned, 5, 0},
		{all, protocol.Held, 6, 1000000002},
		{times("locked_at", "1000000001", "auto_unlock_at", "1000000003"), protocol.Held, 6, 1000000003},
	} {
		rank, at := c.l.Urgency(c.state)
		require.Equal(t, c.rank, rank, c.state)
		require.Equal(t, c.at*protocol.Timestamp(time.Second), at, c.state)
	}
}
