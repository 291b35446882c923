package api

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// WaiterList answers GET /api/v1/waiters: those who wait for a lock and have a ticket, in the order in which they get it.
type WaiterList struct {
	Name    string   `json:"name"`
	Waiters []Waiter `json:"waiters"`
	More    int      `json:"more_waiters,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// Total returns how many wait.
func (l WaiterList) Total() int { return len(l.Waiters) + l.More }

// Waiter is a process that waits for a lock, as its ticket describes it.
type Waiter struct {
	protocol.Ticket
	Key        string    `json:"ticket"`
	Revision   int64     `json:"create_revision"`
	Seen       time.Time `json:"seen,omitzero"`
	Unreadable bool      `json:"unreadable,omitempty"`
}

// DeadlockList answers GET /api/v1/deadlocks.
type DeadlockList struct {
	Deadlocks []Deadlock `json:"deadlocks"`
	Error     string     `json:"error,omitempty"`
}

// Deadlock is a set of flows of work, each of which waits for locks that only they hold.
type Deadlock struct {
	Due   time.Time      `json:"due,omitzero"`
	Flows []DeadlockFlow `json:"flows"`
	More  int            `json:"more_flows,omitempty"`
}

// DeadlockFlow waits for a lock, and holds some for which others wait.
type DeadlockFlow struct {
	Lock string   `json:"lock"`
	Held []string `json:"held"`
	Line string   `json:"line,omitempty"`
	Waiter
}

// Who names the process of the flow, quoted where that is not safe to print.
func (f DeadlockFlow) Who() string {
	q := terminal.Quote
	return fmt.Sprintf("%s on %s (pid %s)", q(cmp.Or(f.Owner, "an unnamed process")), q(cmp.Or(f.Hostname, "an unknown host")), q(cmp.Or(f.PID, "unknown")))
}

// String says what the flow holds and waits for, quoted likewise.
func (f DeadlockFlow) String() string {
	return fmt.Sprintf("%s holds %s and waits for %s", f.Who(), terminal.Quote(strings.Join(f.Held, ", ")), terminal.Quote(f.Lock))
}

// String says what all its flows hold and wait for.
func (d Deadlock) String() string {
	words := ""
	for _, f := range d.Flows {
		words += f.String() + "; "
	}
	return strings.TrimSuffix(words, "; ")
}
