package api

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Query selects locks, as the parameters of GET /api/v1/locks and GET /api/v1/events do.
type Query struct {
	// States are the names of the states to include; empty means all.
	States []string
	// Contains is a part of the name, Hostname and Owner the whole host and service name of the
	// holder; empty means any.
	Contains, Hostname, Owner string
	// Match is a pattern for the whole name, as in policies; empty means any. It is not a parameter: a request to
	// unlock many has it in its body.
	Match string
	// Silent leaves out all locks but those whose holders have missed several renewals.
	Silent bool
	// ByUrgency orders the locks by urgency instead of by name.
	ByUrgency bool
	// After is the Next of the page before; empty for the first page.
	After string
	// Limit is the maximum number of locks.
	Limit int
}

// Matches reports whether the query selects a lock in a state. Whether the holder is silent only the table knows.
func (q *Query) Matches(l *protocol.Lock, state protocol.State) bool {
	return (len(q.States) == 0 || slices.Contains(q.States, state.String())) &&
		(q.Hostname == "" || l.Hostname() == q.Hostname) && (q.Owner == "" || l.Owner() == q.Owner) &&
		strings.Contains(l.Name, q.Contains) && (q.Match == "" || doublestar.MatchUnvalidated(q.Match, l.Name))
}

// Values returns the parameters of the query.
func (q Query) Values() url.Values {
	values := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	for name, value := range map[string]string{
		"state": strings.Join(q.States, ","), "q": q.Contains, "hostname": q.Hostname, "owner": q.Owner, "after": q.After,
		"silent": map[bool]string{true: "true"}[q.Silent], "sort": map[bool]string{true: "urgency"}[q.ByUrgency],
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// ErrAfter is the error for an After that was not the Next of a page in the same order.
var ErrAfter = errors.New("not the value of a next")

// The types of an Event.
const (
	// EventReset replaces all locks that the client has: by Locks, of Matched that match.
	EventReset = "reset"
	// EventLock has a lock that is new in the window or has changed, EventGone the name of one
	// that is not in the window any more.
	EventLock = "lock"
	EventGone = "gone"
	// EventMatched has the number of locks that match, EventStatus the status of the daemon.
	EventMatched = "matched"
	EventStatus  = "status"
)

// Event is the data of one event of GET /api/v1/events. It has what its type needs only.
type Event struct {
	Type    string  `json:"type"`
	Name    string  `json:"name,omitempty"`
	Lock    *Lock   `json:"lock,omitempty"`
	Locks   []Lock  `json:"locks,omitzero"`
	Matched *int    `json:"matched,omitempty"`
	Status  *Status `json:"status,omitempty"`
}

// MaxPage bounds the locks of a page or window as JSON, in bytes. Names are untrusted, and may make
// a thousand locks many megabytes.
const MaxPage = 1 << 20

// Fit returns the first of the locks, as many as MaxPage allows, but one at least. It clears the
// others, so that they take no memory.
func Fit(locks []Lock) []Lock {
	size := 0
	for i := range locks {
		if size += locks[i].size(); i > 0 && size > MaxPage {
			clear(locks[i:])
			return locks[:i]
		}
	}
	return locks
}

// fixedSize is more than what the JSON of a lock takes beside its text.
const fixedSize = 602

// size is at least the length of the JSON.
func (l *Lock) size() int {
	size := fixedSize
	texts := []string{l.Name, l.State, l.UUID, l.Hostname, l.Owner, l.Explanation, l.Urgency}
	for _, t := range l.Texts() {
		texts = append(texts, t.Value)
	}
	for _, text := range texts {
		for i := range len(text) {
			size += escaped(text[i])
		}
	}
	return size
}

// escaped is at least the length of a byte in JSON that is safe to print.
func escaped(b byte) int {
	switch {
	case b >= utf8.RuneSelf:
		return 3 // a character of two bytes takes six, one of four bytes twelve
	case b < ' ', b == '"', b == '\\', b == '<', b == '>', b == '&', b == 0x7f:
		return 6
	}
	return 1
}
