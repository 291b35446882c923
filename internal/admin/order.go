package admin

import (
	"cmp"
	"math"
	"strings"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Orders returns the names of the orders of locks: those of columns, and urgency.
func Orders() []string {
	return []string{"name", "urgency", "hostname", "owner", "held", "alert", "unlock"}
}

// compareBy returns the comparison of an order at now. Locks without what they are ordered by
// come last, and those that are equal in it are ordered by name.
func compareBy(order string, now protocol.Timestamp) func(a, b *protocol.Lock) int {
	by := func(_, _ *protocol.Lock) int { return 0 }
	switch order {
	case "urgency":
		by = func(a, b *protocol.Lock) int {
			first, at := a.Urgency(a.State(now))
			second, other := b.Urgency(b.State(now))
			return cmp.Or(cmp.Compare(first, second), compareTimes(at, other))
		}
	case "hostname":
		by = func(a, b *protocol.Lock) int { return compareTexts(a.Hostname(), b.Hostname()) }
	case "owner":
		by = func(a, b *protocol.Lock) int { return compareTexts(a.Owner(), b.Owner()) }
	case "held":
		by = func(a, b *protocol.Lock) int { return compareTimes(a.LockedAt(), b.LockedAt()) }
	case "alert":
		by = func(a, b *protocol.Lock) int { return compareTimes(a.AlertAt(), b.AlertAt()) }
	case "unlock":
		by = func(a, b *protocol.Lock) int { return compareTimes(a.AutoUnlockAt(), b.AutoUnlockAt()) }
	}
	return func(a, b *protocol.Lock) int { return cmp.Or(by(a, b), strings.Compare(a.Name, b.Name)) }
}

func compareTexts(a, b string) int {
	if a == "" || b == "" {
		return -strings.Compare(a, b)
	}
	return strings.Compare(a, b)
}

func compareTimes(a, b protocol.Timestamp) int {
	const never = protocol.Timestamp(math.MaxInt64)
	return cmp.Compare(cmp.Or(a, never), cmp.Or(b, never))
}
