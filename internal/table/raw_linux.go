package table

import (
	"time"

	"golang.org/x/sys/unix"
)

// Raw returns CLOCK_MONOTONIC_RAW, which NTP does not slew. On other systems it returns the monotonic clock.
func Raw() func() time.Duration {
	return func() time.Duration {
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &now) // every Linux that Go runs on has it
		return time.Duration(now.Nano())
	}
}
