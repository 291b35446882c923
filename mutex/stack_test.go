package mutex_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// hang is where the holder of TestStack stands when its lock is overdue.
func hang(release <-chan struct{}) { <-release }

func TestStack(t *testing.T) {
	both(t, func(t *testing.T, w world) {
		locked, release := make(chan *mutex.Lock, 1), make(chan struct{})
		c := w.client(mutex.Expect(300 * time.Millisecond))
		go func() {
			l, err := c.Lock(t.Context(), "a")
			if err != nil {
				close(locked)
				return
			}
			locked <- l
			hang(release)
		}()
		l := <-locked
		require.NotNil(t, l)
		require.NotContains(t, w.fields(), "a/stack")
		etcdtest.Eventually(t, func() bool { return w.fields()["a/stack"] != "" })
		f := w.fields()
		require.GreaterOrEqual(t, time.Now(), seconds(t, f["a/alert_at"]))
		require.Contains(t, f["a/backtrace"], "stack_test.go")
		require.NotContains(t, f["a/backtrace"], "mutex_test.hang")
		require.Regexp(t, `^goroutine \d+ \[chan receive\]:\n\S+mutex_test\.hang \S+/stack_test\.go:\d+\n`, f["a/stack"])
		require.LessOrEqual(t, len(f["a/stack"]), 4100)

		// A renewal puts the alert off, and the next one writes the stack again.
		close(release)
		require.NoError(t, l.Alive(t.Context()))
		etcdtest.Eventually(t, func() bool { return strings.Contains(w.fields()["a/stack"], "has ended") })
		require.NoError(t, l.Unlock(t.Context()))
		require.Empty(t, w.fields())

		quiet := w.lock(c, "quiet", mutex.Backtrace(false))
		<-time.After(500 * time.Millisecond)
		require.NotContains(t, w.fields(), "quiet/backtrace")
		require.NotContains(t, w.fields(), "quiet/stack")
		require.NoError(t, quiet.Unlock(t.Context()))
	})
}

func TestBacktraceOfEachCall(t *testing.T) {
	both(t, func(t *testing.T, w world) {
		c := w.client()
		w.lock(c, "a")
		w.lock(c, "b")
		for _, name := range []string{"c", "d"} {
			w.lock(c, name)
		}
		f := w.fields()
		require.NotEqual(t, f["a/backtrace"], f["b/backtrace"])
		require.Equal(t, f["c/backtrace"], f["d/backtrace"])
	})
}
