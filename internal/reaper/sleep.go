package reaper

import (
	"context"
	"time"
)

// timerDelay is how late a timer of the runtime may fire on an idle system, on which the runtime
// waits in whole milliseconds.
const timerDelay = 2 * time.Millisecond

// sleep blocks for d, with a precision of some ten microseconds on Linux, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	end := time.Now().Add(d)
	select {
	case <-time.After(d - timerDelay):
		fineSleep(time.Until(end))
	case <-ctx.Done():
	}
}
