// Package message has the log messages that alerts, runbooks, tests, the demo or scripts of
// users search for. They are part of the interface: a test requires that docs/operations.md has
// each of them. Other log messages are not in this package.
package message

// Start and stop of the daemon.
const (
	ConfigurationRead = "configuration read"
	Started           = "unlocker started"
	Stopping          = "stopping"
	Stopped           = "stopped"
)

// The watch and the election.
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
	DryRun     = "dry run: no lock is removed automatically"
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
	Waiting      = "a lock past its deadline is still there"
	CannotLog    = "lock not removed: its record cannot be logged"
)
