package verdict

import "time"

// StormRules say when so many locks come due at once that a fault between their
// holders and etcd is likelier than that many deaths.
type StormRules struct {
	// MinLocks is the minimum number of locks; 0 turns it off. Fraction is their
	// share of all locks with a deadline.
	MinLocks int
	Fraction float64
	// Window is the time within which they came due.
	Window time.Duration
	// Delay is added to the due of each further lock, once for each deadline.
	Delay time.Duration
}

// Storm reports whether the next lock that comes due is delayed, came being the
// number of those that came due within the window, of dated locks.
func (r StormRules) Storm(came, dated int) bool {
	return r.MinLocks > 0 && came >= r.MinLocks && float64(came) >= r.Fraction*float64(dated)
}
