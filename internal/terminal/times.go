package terminal

import (
	"fmt"
	"math"
	"time"
)

// Time formats an instant in UTC, to the second.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Relative formats the distance of an instant from now, such as "in 3m12s" or "12s ago".
func Relative(t, now time.Time) string {
	switch d := Duration(t.Sub(now)); {
	case d == "0s":
		return "now"
	case d[0] == '-':
		return d[1:] + " ago"
	default:
		return "in " + d
	}
}

// Duration formats a duration, rounded to the second, in its two largest units.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	sign := ""
	if d = d.Round(time.Second); d < 0 {
		sign, d = "-", -max(d, -math.MaxInt64)
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%s%ds", sign, d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%s%dm%02ds", sign, d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%s%dh%02dm", sign, d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%s%dd%02dh", sign, d/day, d%day/time.Hour)
}
