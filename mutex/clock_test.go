package mutex

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClocks counts the clock that is ahead: the monotonic one if the wall clock was set
// back, the wall clock if the machine was suspended.
func TestClocks(t *testing.T) {
	t.Parallel()
	began := time.Now()
	term := term{began: began, length: 10 * time.Second}
	require.Equal(t, 9*time.Second, term.left(began))
	require.Equal(t, 4*time.Second, term.left(began.Add(5*time.Second)))
	// A time without a monotonic reading stands for a wall clock that has gone on alone.
	suspended := began.Round(0).Add(time.Minute)
	require.Negative(t, term.left(suspended))
}
