//go:build !linux

package table

import "time"

// Raw returns the monotonic clock: only Linux has one that NTP does not slew.
func Raw() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
