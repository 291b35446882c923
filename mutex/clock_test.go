//go:build go1.25

package mutex

import (
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// TestClocks counts the clock that is ahead: the monotonic one if the wall clock was set
// back, the wall clock if the machine was suspended.
func TestClocks(t *testing.T) {
	t.Parallel()
	began := time.Now()
	term := term{began: began, length: 10 * time.Second}
	require.Equal(t, 9*time.Second, term.left(began))
	require.Equal(t, 4*time.Second, term.left(began.Add(5*time.Second)))
	require.Equal(t, time.Minute, alone(began, time.Minute).Sub(began))
	require.Zero(t, alone(began, time.Minute).Round(0).Sub(began.Round(0)))
	require.Equal(t, 9*time.Second-time.Minute, term.left(alone(began, time.Minute)))
	require.Equal(t, 9*time.Second-time.Minute, term.left(alone(began.Add(time.Minute), -time.Minute)))
}

// alone returns a time after the monotonic clock has gone on alone: the second word of a time with a
// monotonic reading is that reading.
func alone(at time.Time, by time.Duration) time.Time {
	*(*int64)(unsafe.Add(unsafe.Pointer(&at), 8)) += int64(by)
	return at
}

// Pass makes it look as if time had passed since the last renewal, as the two clocks show it. In a bubble, where times have
// no monotonic reading, it cannot.
func (l *Lock) Pass(wall, monotonic time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term.began = alone(l.term.began.Add(-wall), wall-monotonic)
}

// kept returns a lock that is renewed for an hour, in an etcd of its own, and the link to that.
func kept(t *testing.T) (*Lock, *memetcd.Link) {
	t.Helper()
	cluster := memetcd.New(memetcd.Options{})
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	link, err := cluster.Connect()
	require.NoError(t, err)
	c, err := New(link.Client, KeepAlive(time.Hour), Backtrace(false))
	require.NoError(t, err)
	l, err := c.TryLock(t.Context(), "a")
	require.NoError(t, err)
	return l, link
}

// TestNothingIsRenewedPastTheDeadline has the keeper look before any timer fires, as after a suspend.
func TestNothingIsRenewedPastTheDeadline(t *testing.T) {
	t.Parallel()
	l, _ := kept(t)
	l.Pass(10*time.Minute, 0)
	require.Nil(t, l.begin())
	require.ErrorIs(t, l.Unlock(t.Context()), ErrDeadline)
}

// TestNothingIsWrittenAfterUnlock sends a renewal and an answer that were to begin while Unlock does: they would leave fields
// that the release does not delete.
func TestNothingIsWrittenAfterUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))) // 2000 is not plausible
		l, link := kept(t)
		alive := &renewal{l: l, set: l.set, explicit: true}
		alive.set.status = "half"
		renewal, answer := l.begin(), &note{l: l, fields: map[protocol.Field]string{protocol.FieldStatus: "half"}}
		link.Set(memetcd.Faults{Request: time.Second})
		released := make(chan error)
		go func() { released <- l.Unlock(t.Context()) }()
		synctest.Wait()
		link.Set(memetcd.Faults{})
		l.c.store.round(t.Context(), time.Second, []request{renewal, alive, answer})
		renewal.ended()
		require.NoError(t, <-released)
		left, err := link.Get(t.Context(), "/mutexes/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Empty(t, left.Kvs)
	})
}
