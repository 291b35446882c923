//go:build !linux

package reaper

import "time"

func fineSleep(d time.Duration) { <-time.After(d) }
