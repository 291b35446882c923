//go:build go1.25

package mutex

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// The world stops for a dump, and who may ask may do so for many locks: a process of many goroutines would do little else, and
// lose its locks.
func TestDumpsTakeLittleOfTheTime(t *testing.T) {
	end, s := make(chan struct{}), &stacks{}
	var all sync.WaitGroup
	t.Cleanup(func() {
		close(end)
		all.Wait()
	})
	for range 5_000 {
		all.Go(func() { <-end })
	}
	began := time.Now()
	first := s.get()
	took := time.Since(began)
	require.GreaterOrEqual(t, bytes.Count(first, []byte("goroutine ")), 5_000)
	require.NotContains(t, string(first), "\x00")
	require.Less(t, cap(first), maxDump/2)
	require.Eventually(t, func() bool { return &s.get()[0] != &first[0] }, time.Minute, time.Millisecond)
	require.Greater(t, time.Since(began), dumpRest/2*took)
	t.Logf("a dump took %s and served for %s", took, time.Since(began))
}

// The dump of a deep stack has a line that is neither a call nor a place.
func TestFormat(t *testing.T) {
	require.Equal(t, strings.Join([]string{
		"goroutine 7 [chan receive, 2 minutes]:",
		"main.(*T).wait /a/b c.go:12",
		"...23 frames elided...",
		"main.run[...] /a/d.go:3",
		"created by main.(*T).start in goroutine 1 /a/e.go:4",
	}, "\n"), format(strings.Join([]string{
		"goroutine 7 [chan receive, 2 minutes]:",
		"main.(*T).wait(0xc000012345, {0x1, 0x2})", "\t/a/b c.go:12 +0x1d",
		"...23 frames elided...",
		"main.run[...](...)", "\t/a/d.go:3",
		"created by main.(*T).start in goroutine 1", "\t/a/e.go:4 +0x7f",
	}, "\n")))
	require.Equal(t, "goroutine 7 [running]:", format("goroutine 7 [running]:"))
	require.LessOrEqual(t, len(format("goroutine 7 [running]:"+strings.Repeat("\nmain.f()\n\t/a/b.go:12 +0x1d", 1000))), maxText+len("…"))
}

// descend calls itself n times, from one of two places as the bits say.
func descend(t *traces, n, bits int) call {
	switch {
	case n == 0:
		return t.caller(true)
	case bits&1 == 0:
		return descend(t, n-1, bits>>1)
	default:
		return descend(t, n-1, bits>>1)
	}
}

// The backtraces that are kept are bounded, and each is right.
func TestTracesAreBounded(t *testing.T) {
	kept, seen := &traces{}, map[string]bool{}
	for range 2 {
		for bits := range 512 {
			text := descend(kept, 9, bits).backtrace
			require.Equal(t, 10, strings.Count(text, "mutex.descend "))
			seen[text] = true
			require.LessOrEqual(t, len(kept.texts), 256)
		}
	}
	require.Len(t, seen, 512)
	require.Greater(t, len(kept.texts), 128)
}

// Functions of the client are left out where it was called, and not further up.
func TestBacktraceOfALockInALock(t *testing.T) {
	cluster := memetcd.New(memetcd.Options{})
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	link, err := cluster.Connect()
	require.NoError(t, err)
	c, err := New(link.Client)
	require.NoError(t, err)
	require.NoError(t, c.WithLock(t.Context(), "a", func(ctx context.Context) error {
		return c.WithLock(ctx, "b", func(ctx context.Context) error {
			l, _ := FromContext(ctx)
			text := l.written["backtrace"]
			first, _, _ := strings.Cut(text, "\n")
			require.Contains(t, first, "mutex.TestBacktraceOfALockInALock.")
			require.Equal(t, 1, strings.Count(text, "mutex.(*Client).WithLock"))
			return nil
		})
	}))
}

// A dump serves all who ask within 100 ms, and no longer.
func TestDumpServesForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stacks{}
		first := &s.get()[0]
		time.Sleep(99 * time.Millisecond)
		require.Same(t, first, &s.get()[0])
		time.Sleep(2 * time.Millisecond)
		require.NotSame(t, first, &s.get()[0])
		time.Sleep(time.Second)
	})
}
