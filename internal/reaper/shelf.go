package reaper

import (
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// shelf has removals in the order of their time, up to a limit of their size.
type shelf struct {
	entries []api.Forced
	// bytes is the sum of the sizes of the entries.
	bytes, limit int
}

// add adds an entry of the time now, unless its own time is known and past.
func (s *shelf) add(entry api.Forced, now time.Time) {
	at := len(s.entries)
	if entry.At.IsZero() || entry.At.After(now) {
		if entry.At = now; at > 0 && now.Before(s.entries[at-1].At) {
			entry.At = s.entries[at-1].At // the wall clock stepped back
		}
	} else {
		at = s.since(entry.At)
	}
	s.entries = slices.Insert(s.entries, at, entry)
	for s.bytes += sizeOf(&entry); s.bytes > s.limit; {
		s.cut(1)
	}
}

func (s *shelf) expire(before time.Time) { s.cut(s.since(before)) }

// since returns the index of the first entry that is not before t.
func (s *shelf) since(t time.Time) int {
	n, _ := slices.BinarySearchFunc(s.entries, t, func(e api.Forced, t time.Time) int { return e.At.Compare(t) })
	return n
}

// cut drops the n oldest entries.
func (s *shelf) cut(n int) {
	for i := range s.entries[:n] {
		s.bytes -= sizeOf(&s.entries[i])
	}
	clear(s.entries[:n])
	s.entries = s.entries[n:]
}
