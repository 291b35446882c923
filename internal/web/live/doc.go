// Package live sends clients a window of the locks, the first by urgency that match a query, and
// keeps it up to date (GET /api/v1/events).
//
// Guaranteed: a client that applies the events in their order has what a page of the query showed
// at the last pass. Whatever the clients do, memory is bounded: equal queries share one view, which
// has one window, of at most 1 MiB as JSON, and one ring of encoded events, of half a MiB. A window
// that would be larger has fewer locks. Its JSON is kept only while it is sent: one for all clients,
// beside older ones for those that are slow. Clients are places in the ring and have no buffer;
// one that is too slow for the ring gets the whole window again, and one that does not read is dropped. The
// locks are scanned only while clients are there and something changed, once for all views, and
// that keeps them from removals for at most a twentieth of the time, or a quarter while new queries
// come. Not guaranteed: each state in
// between, which a lock may have for less than the time from one pass to the next.
package live
