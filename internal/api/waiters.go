package api

import (
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// WaiterList answers GET /api/v1/waiters: those who wait for a lock and have a ticket, in the order in which they get it.
type WaiterList struct {
	Name    string   `json:"name"`
	Waiters []Waiter `json:"waiters"`
	// More counts those who are not in Waiters.
	More int `json:"more_waiters,omitempty"`
	// Error is why there may be others.
	Error string `json:"error,omitempty"`
}

// Total returns how many wait.
func (l WaiterList) Total() int { return len(l.Waiters) + l.More }

// Waiter is a process that waits for a lock, as its ticket describes it.
type Waiter struct {
	protocol.Ticket
	// Key is the end of the ticket's key, after the two slashes, Revision its create_revision, which is the order.
	Key      string `json:"ticket"`
	Revision int64  `json:"create_revision"`
	// Seen is when the daemon first saw the ticket: at its start for one that was there. Left out by commands.
	Seen time.Time `json:"seen,omitzero"`
	// Unreadable reports whether the value of the ticket cannot be read.
	Unreadable bool `json:"unreadable,omitempty"`
}
