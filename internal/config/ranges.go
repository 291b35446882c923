package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxWait bounds what is added to a deadline: who wants more wants another
// deadline, and sums stay far from overflowing.
const maxWait = 24 * time.Hour

func positive(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("must be more than 0, not %s", formatDuration(d))
	}
	return nil
}

func atLeast(least time.Duration) func(time.Duration) error {
	return func(d time.Duration) error {
		if d < least {
			return fmt.Errorf("must be at least %s, not %s", formatDuration(least), formatDuration(d))
		}
		return nil
	}
}

func zeroOrAtLeast(least time.Duration) func(time.Duration) error {
	return func(d time.Duration) error {
		if d != 0 && d < least {
			return fmt.Errorf("must be 0 (off) or at least %s, not %s", formatDuration(least), formatDuration(d))
		}
		return nil
	}
}

func upTo(most time.Duration) func(time.Duration) error {
	return func(d time.Duration) error {
		if d < 0 || d > most {
			return fmt.Errorf("must be 0s to %s, not %s", formatDuration(most), formatDuration(d))
		}
		return nil
	}
}

// wholeSeconds is what a lease of etcd can last.
func wholeSeconds(least time.Duration) func(time.Duration) error {
	return func(d time.Duration) error {
		if d%time.Second != 0 {
			return fmt.Errorf("must be whole seconds, not %s", formatDuration(d))
		}
		return atLeast(least)(d)
	}
}

func between[T int | float64](least, most T) func(T) error {
	return func(n T) error {
		if n >= least && n <= most { // not the other way round: NaN is outside, too
			return nil
		}
		return fmt.Errorf("must be %v to %v, not %v", least, most, n)
	}
}

func notNegative[T int | float64](n T) error {
	if n >= 0 {
		return nil
	}
	return fmt.Errorf("must be at least 0, not %v", n)
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}
