package api

// Query selects locks, as the parameters of GET /api/v1/locks and GET /api/v1/events do.
type Query struct {
	// States are the names of the states to include; empty means all.
	States []string
	// Contains is a part of the name, Hostname and Owner the whole host and service name of the
	// holder; empty means any.
	Contains, Hostname, Owner string
	// ByUrgency orders the locks by urgency instead of by name.
	ByUrgency bool
	// After is the Next of the page before; empty for the first page.
	After string
	// Limit is the maximum number of locks.
	Limit int
}
