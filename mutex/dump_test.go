//go:build go1.25

package mutex

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
