//go:build go1.25

package mutex_test

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// hang is where the holder of TestStack stands when its lock is overdue.
func hang(release <-chan struct{}) { <-release }

// self is how the stack of this goroutine begins, up to its state.
func self() string {
	var b [64]byte
	text, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), "[")
	return text
}

// stands reports whether one of all goroutines' stacks has the text.
func stands(text string) bool {
	stacks := make([]byte, 8<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), text)
}

// TestStack runs in real time: in a bubble the states of goroutines have other names.
func TestStack(t *testing.T) {
	t.Parallel()
	onEtcd(t, func(t *testing.T, w world) {
		type holder struct {
			l    *mutex.Lock
			self string
		}
		locked, release := make(chan holder, 1), make(chan struct{})
		c := w.client(mutex.Expect(time.Hour), mutex.Patience(2*time.Hour))
		go func() {
			l, err := c.Lock(t.Context(), "a")
			if err != nil {
				close(locked)
				return
			}
			locked <- holder{l, self()}
			hang(release)
		}()
		h := <-locked
		l := h.l
		require.NotNil(t, l)
		eventually(t, func() bool { return stands(h.self + "[chan receive]:\n") })
		require.NotContains(t, w.fields(), "a/stack")
		require.NoError(t, l.Alive(t.Context(), mutex.Expect(300*time.Millisecond)))
		eventually(t, func() bool { return w.fields()["a/stack"] != "" })
		f := w.fields()
		require.GreaterOrEqual(t, time.Now(), seconds(t, f["a/alert_at"]))
		require.Contains(t, f["a/backtrace"], "stack_test.go")
		require.NotContains(t, f["a/backtrace"], "mutex_test.hang")
		require.Regexp(t, `^goroutine \d+ \[chan receive\]:\n\S+mutex_test\.hang \S+/stack_test\.go:\d+\n`, f["a/stack"])
		require.LessOrEqual(t, len(f["a/stack"]), 4100)

		// A renewal puts the alert off, and the next one writes the stack again.
		close(release)
		eventually(t, func() bool { return !stands(h.self) })
		eventually(t, func() bool {
			require.NoError(t, l.Alive(t.Context()))
			<-time.After(500 * time.Millisecond) // a dump that took long is used again: then the next one has it
			return strings.Contains(w.fields()["a/stack"], "has ended")
		})
		require.NoError(t, l.Unlock(t.Context()))
		require.Empty(t, w.fields())

		// It is written also where nothing has renewed the lock.
		soon := mutex.Expect(300 * time.Millisecond)
		loud := w.lock(c, "loud", soon)
		quiet := w.lock(c, "quiet", soon, mutex.Backtrace(false))
		eventually(t, func() bool { return w.fields()["loud/stack"] != "" })
		<-time.After(500 * time.Millisecond)
		require.NotContains(t, w.fields(), "quiet/backtrace")
		require.NotContains(t, w.fields(), "quiet/stack")
		require.NoError(t, quiet.Unlock(t.Context()))
		require.NoError(t, loud.Unlock(t.Context()))
	})
}

// TestStackIsWrittenOnce counts what a holder sends that is overdue, until it renews its lock.
func TestStackIsWrittenOnce(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Expect(10*time.Second), mutex.Patience(time.Hour))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		var stacks atomic.Int64
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if r, ok := req.(*etcdserverpb.TxnRequest); ok && len(r.Success) > 0 && strings.HasSuffix(string(r.Success[0].GetRequestPut().GetKey()), "/stack") {
				stacks.Add(1)
			}
			return memetcd.Faults{}
		})
		for i := range 3 {
			<-time.After(10*time.Second - time.Millisecond)
			require.EqualValues(t, i, stacks.Load())
			<-time.After(2 * time.Minute)
			require.EqualValues(t, i+1, stacks.Load())
			require.NoError(t, l.Alive(t.Context()))
		}
		require.NoError(t, l.Unlock(t.Context()))
	})
}

func TestBacktraceOfEachCall(t *testing.T) {
	on(t, func(t *testing.T, w world) {
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
