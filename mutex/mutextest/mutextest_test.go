//go:build go1.25

package mutextest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
)

// export is an example of code under test: it stops when it loses its lock.
func export(ctx context.Context, client *mutex.Client) (rows int, err error) {
	err = client.WithLock(ctx, "export", func(ctx context.Context) error {
		for ; rows < 3600; rows++ {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}, mutex.KeepAlive(2*time.Hour))
	return rows, err
}

// TestALockThatIsLeftHeld leaves the locks of others to the end of the test, which is that of its clients.
func TestALockThatIsLeftHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := mutextest.New(t)
		for name, opts := range map[string][]mutex.Option{"a": nil, "b": {mutex.KeepAlive(mutex.Forever)}} {
			l, err := e.Client(opts...).Lock(t.Context(), name)
			require.NoError(t, err)
			<-time.After(time.Minute)
			require.NoError(t, l.Held())
			_, err = e.Client().TryLock(t.Context(), name)
			require.ErrorIs(t, err, mutex.ErrHeld)
		}
	})
}

// TestLoss is how users test what their code does when it loses its lock. An hour takes no
// time in the bubble.
func TestLoss(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(*mutextest.Etcd)
		want error
		rows int // at least
	}{
		"nothing":      {func(*mutextest.Etcd) {}, nil, 3600},
		"removed":      {func(e *mutextest.Etcd) { e.Remove("export") }, mutex.ErrForced, 600},
		"taken":        {func(e *mutextest.Etcd) { e.Take("export") }, mutex.ErrTaken, 600},
		"disconnected": {func(e *mutextest.Etcd) { e.Disconnect() }, mutex.ErrUnreachable, 660},
		"full":         {func(e *mutextest.Etcd) { e.Full(true) }, mutex.ErrNoSpace, 660},
		"outage": {func(e *mutextest.Etcd) {
			e.Disconnect()
			<-time.After(30 * time.Second)
			e.Connect()
		}, nil, 3600},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := mutextest.New(t)
				client := e.Client()
				end := make(chan error, 1)
				var rows int
				go func() {
					var err error
					rows, err = export(t.Context(), client)
					end <- err
				}()
				<-time.After(10 * time.Minute)
				_, err := e.Client().TryLock(t.Context(), "export")
				require.ErrorIs(t, err, mutex.ErrHeld)
				tc.lose(e)
				if errors.Is(tc.want, mutex.ErrUnreachable) {
					<-time.After(5 * time.Minute)
					e.Connect()
				}
				err = <-end
				require.ErrorIs(t, err, tc.want)
				require.GreaterOrEqual(t, rows, tc.rows-1)
				require.LessOrEqual(t, rows, tc.rows+121)
			})
		})
	}
}
