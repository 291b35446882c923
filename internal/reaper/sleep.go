package reaper

import (
	"context"
	"time"
)

// coarse is how late a timer of the runtime may fire on an idle system, which
// waits in whole milliseconds.
const coarse = 2 * time.Millisecond

// sleep waits for d, to some ten microseconds where the system can, or until
// ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	end := time.Now().Add(d)
	select {
	case <-time.After(d - coarse):
		fineSleep(time.Until(end))
	case <-ctx.Done():
	}
}
