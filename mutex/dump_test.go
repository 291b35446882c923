//go:build go1.25

package mutex

import (
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
	require.Eventually(t, func() bool { return &s.get()[0] != &first[0] }, time.Minute, time.Millisecond)
	require.Greater(t, time.Since(began), dumpRest/2*took)
	t.Logf("a dump took %s and served for %s", took, time.Since(began))
}
