package mutex

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// EventKind is what happened to a lock.
type EventKind string

// The kinds of events. An Event has the fields that its kind names.
const (
	// EventWaiting begins a wait of Lock: Err is the *HeldError. Without a Name the client has waited for etcd for ten
	// seconds, or a minute more: Err is ErrUnreachable and says why. Or it may not put tickets, and waits in no order (see
	// WaitersPrefix): Err says so, once.
	EventWaiting EventKind = "waiting"
	// EventTaken is a lock that was taken. Took is how long the call waited, for others and for etcd.
	EventTaken EventKind = "taken"
	// EventRenewed is a renewal. Margin is the share of the patience that was left.
	EventRenewed EventKind = "renewed"
	// EventLate follows the first renewal that had a Margin of less than a quarter, until one has more again.
	EventLate EventKind = "late"
	// EventLost is a lock that was lost after it was held for Took. Err is the *LostError.
	EventLost EventKind = "lost"
	// EventReleased is a lock that Unlock has released after it was held for Took.
	EventReleased EventKind = "released"
	// EventAsked is a question to the holder; see AskPrefix. Without a Name the client has no right to read
	// questions: Err says so, once.
	EventAsked EventKind = "asked"
)

// lateMargin is the Margin below which a renewal is late.
const lateMargin = .25

// Event is something that happened to a lock, or to a client where it has no Name.
type Event struct {
	Kind       EventKind
	Name, UUID string
	// Context is that of the call for EventWaiting and EventTaken, and nil for the others.
	Context context.Context
	Took    time.Duration
	Margin  float64
	Err     error
}

// Observe calls f with each event of the locks, after those functions that were given before. It may be called by several
// goroutines at a time, delays locks and renewals until it returns, and must not lock or unlock.
//
// At first there is one such function, Log(nil). Observe(nil) removes all.
func Observe(f func(Event)) Option {
	return option("Observe", inNew|inLock, func(s *settings) {
		if s.observers = append(slices.Clip(s.observers), f); f == nil {
			s.observers = nil
		}
	})
}

// Log returns a function for Observe that logs warnings: a wait for etcd, or in no order, late renewals, and no right
// to read questions. Without a logger it uses slog.Default.
func Log(logger *slog.Logger) func(Event) {
	return func(e Event) {
		switch to := cmp.Or(logger, slog.Default()); {
		case e.Kind == EventLate:
			to.Warn("mutex: lock renewed late", "lock", e.Name, "uuid", e.UUID, "margin", e.Margin)
		case e.Kind == EventWaiting && errors.Is(e.Err, ErrUnreachable):
			to.Warn("mutex: waiting for etcd", "error", e.Err)
		case e.Kind == EventWaiting && e.Name == "":
			to.Warn("mutex: waiting in no order", "error", e.Err)
		case e.Kind == EventAsked && e.Err != nil:
			to.Warn("mutex: no answers to unlocker ask", "error", e.Err)
		}
	}
}

type observers []func(Event)

func (o observers) emit(e Event) {
	for _, f := range o {
		f(e)
	}
}

// emit completes the event of a lock. It is called without the mutex, or in a goroutine of its own.
func (l *Lock) emit(e Event) {
	e.Name, e.UUID = l.name, l.uuid
	l.observers.emit(e)
}
