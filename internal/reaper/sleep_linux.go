package reaper

import (
	"syscall"
	"time"
)

// fineSleep blocks the thread until a high-resolution timer of the kernel fires. A signal may wake
// it early, which is harmless, since the verdict reads the clock.
func fineSleep(d time.Duration) {
	if d > 0 {
		left := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&left, nil)
	}
}
