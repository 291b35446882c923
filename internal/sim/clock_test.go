package sim

import "time"

// shift makes the bubble's clock, which begins in the year 2000, a plausible one.
const shift = 26 * 365 * 24 * time.Hour

// clock is the wall clock of a host or replica. Durations count from the beginning of the history.
type clock struct {
	Offset time.Duration
	// Drift is in parts per million.
	Drift int
	Steps []step
	// Slewed is by how many parts per million a replica's monotonic clock runs too fast.
	Slewed int
}

type step struct{ At, By time.Duration }

// apart returns the clock minus true time, at a time.
func (c clock) apart(at time.Duration) time.Duration {
	apart := c.Offset + at*time.Duration(c.Drift)/1_000_000
	for _, s := range c.Steps {
		if at >= s.At {
			apart += s.By
		}
	}
	return apart
}

// stepped returns when it was last noticed that the clock was set: what is within the tolerance, once drift has made it
// more.
func (c clock) stepped(tolerance time.Duration) (last time.Duration) {
	for _, s := range c.Steps {
		at := s.At
		if left := tolerance - s.By.Abs(); left > 0 && s.By < 0 == (c.Drift < 0) && c.Drift != 0 {
			at += left * 1_000_000 / time.Duration(c.Drift).Abs()
		}
		last = max(last, at)
	}
	return last
}
