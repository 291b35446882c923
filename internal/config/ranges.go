package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

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

func between(least, most int) func(int) error {
	return func(n int) error {
		if n < least || n > most {
			return fmt.Errorf("must be %d to %d, not %d", least, most, n)
		}
		return nil
	}
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}
