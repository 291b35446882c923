package table

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Steps is a table without its goroutine: each method does its work at once, in
// the caller's. It is for simulations; nothing may be called concurrently.
type Steps struct{ core *core }

// NewSteps returns an empty table; the options are those of New.
func NewSteps(o Options) (Steps, error) {
	t, err := New(o)
	if err != nil {
		return Steps{}, err
	}
	return Steps{core: t.core}, nil
}

// Apply is Table.Apply.
func (s Steps) Apply(events []Event, live bool) { s.core.apply(events, live) }

// Begin is Table.Begin.
func (s Steps) Begin(revision int64, beside bool) { s.core.begin(revision, beside) }

// List is Table.List.
func (s Steps) List(locks []lock.Lock) { s.core.list(locks) }

// End is Table.End.
func (s Steps) End() { s.core.end() }

// Forget is Table.Forget.
func (s Steps) Forget() { s.core.forget() }

// Postpone is Table.Postpone.
func (s Steps) Postpone(name string, token int64, delay time.Duration) {
	s.core.postpone(name, token, delay)
}

// Take returns at once, with the locks that are due.
func (s Steps) Take(most int) Batch { return s.core.take(most) }

// Pressure tells how much is due.
func (s Steps) Pressure() Pressure { return s.core.pressure(s.core.now()) }

// Pass lets the time that has passed take effect, as Run does, and returns how
// long nothing changes by itself, and the locks that vanished.
func (s Steps) Pass() (time.Duration, []Gone) {
	s.core.advance()
	gone := s.core.gone
	s.core.gone = nil
	return s.core.sleep(), gone
}
