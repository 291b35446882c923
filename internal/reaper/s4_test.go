package reaper_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

// A known field with a lease makes the lock somebody else's.
func TestS4_LeasedFieldIsNeverRemoved(t *testing.T) {
	for _, field := range []string{"uuid", "auto_unlock_at", "hostname", "backtrace"} {
		for _, size := range []int{1, 64 << 10} {
			t.Run(fmt.Sprint(field, size), func(t *testing.T) {
				h := newHarness(t, sharedClient(t))
				h.set("a", "uuid", "u", "auto_unlock_at", expiry, "purpose", strings.Repeat("x", size))
				lease, err := sharedClient(t).Grant(h.ctx, 600)
				require.NoError(t, err)
				value := map[string]string{"uuid": "u", "auto_unlock_at": expiry}[field]
				h.commit(clientv3.OpPut(h.direct.Layout.Key("a", field), value, clientv3.WithLease(lease.ID)))
				d := h.due("a")
				require.False(t, d.Removable())
				requireLeft(h, d)
			})
		}
	}
}

// More gaps with keys of the lock than a transaction can take: it is left whole, and
// that is logged.
func TestS4_TooManyGapsAreLeftWhole(t *testing.T) {
	for _, n := range []int{140, 1_200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a", "b")
			h.crowd("a/n%04d/uuid", n)
			h.crowd("a/n%04dx", n)
			before := h.keys()
			h.remove("a", "b")
			require.Equal(t, before[:len(before)-5], h.keys())
			require.Equal(t, 1, h.removed())
			require.EqualValues(t, 1, h.sent.Load(), "that of the other lock")
			require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonTooLarge: 1}, h.failures())
			require.Len(t, h.log.with(t, message.CannotRemove, "a"), 1)
			require.Empty(t, h.log.with(t, message.Removing, "a"))
			require.GreaterOrEqual(t, h.source.postponed()[0].delay, 50*time.Millisecond)
		})
	}
}
