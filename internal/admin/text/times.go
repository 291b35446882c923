package text

import (
	"fmt"
	"time"
)

// Instant writes a time for people.
func Instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Relative says how far an instant is away from now.
func Relative(t, now time.Time) string {
	d := t.Sub(now).Round(time.Second)
	switch {
	case d > 0:
		return "in " + Span(d)
	case d < 0:
		return Span(-d) + " ago"
	}
	return "now"
}

// Span writes a duration of whole seconds by its two largest units.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}
