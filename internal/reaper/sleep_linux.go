package reaper

import (
	"syscall"
	"time"
)

// fineSleep blocks the thread, which the kernel wakes by a high-resolution
// timer. Being woken early, by a signal, does no harm: the verdict looks at
// the clock.
func fineSleep(d time.Duration) {
	if d > 0 {
		left := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&left, nil)
	}
}
