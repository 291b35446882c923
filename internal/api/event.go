package api

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
