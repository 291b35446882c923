// Package message holds the words of the log messages that somebody looks for:
// alerts and runbooks, tests, the demo, scripts of other people. They are an
// interface: whoever changes one changes docs/operations.md, and a test finds
// every message that a document quotes.
//
// It does not log, and it does not hold messages that nobody looks for.
package message

// Start and stop of the daemon.
const (
	ConfigurationRead = "configuration read"
	Started           = "unlocker started"
	Stopping          = "stopping"
	Stopped           = "stopped"
)

// What the daemon sees of etcd.
const (
	Listed         = "listed the locks"
	WatchFailed    = "watch failed; relisting"
	Leading        = "elected leader"
	NotLeading     = "no longer the leader"
	ElectionFailed = "election attempt failed; retrying"
)

// Holds.
const (
	HoldBegins = "hold begins: no lock is removed automatically"
	HoldEnds   = "hold ends"
)

// A removal: one message before it is sent, one with its outcome.
const (
	Removing    = "removing a lock that is due"
	WouldRemove = "would remove a lock that is due (dry run)"

	Removed      = "lock removed"
	Conflict     = "lock not removed: modified or released concurrently"
	Withdrawn    = "lock not removed: a hold began, or it is due later"
	Refused      = "lock not removed: etcd refused"
	Ambiguous    = "removal ambiguous: no answer from etcd"
	CannotRemove = "lock cannot be removed"
	CannotRead   = "cannot read locks that are due"
	CannotLog    = "lock not removed: its record cannot be logged"
)
