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
	Failed            = "unlocker failed"
)

// The watch and the election.
const (
	Listed          = "listed the locks"
	WatchFailed     = "watch failed; relisting"
	NotInView       = "a prefix beside the locks is not in view; listing again"
	KeysOmitted     = "too many keys, or too long ones, under a prefix beside the locks: some are not read"
	NativeNotListed = "a prefix of native_prefixes cannot be listed"
	MemberHangs     = "etcd member hangs while another answers; closing the connection"
	Leading         = "elected leader"
	NotLeading      = "no longer the leader"
	ElectionFailed  = "election attempt failed; retrying"
)

// Holds.
const (
	HoldBegins = "hold begins: no lock is removed automatically"
	HoldEnds   = "hold ends"
	DryRun     = "dry run: no lock is removed automatically"
)

// Pauses, of all locks or of some.
const (
	PauseBegins = "pause begins: matching locks are not removed automatically"
	PauseEnds   = "pause ends"
	PauseBroken = "the record of a pause cannot be read: no lock is removed automatically"
)

// A removal: one message before it is sent, one with its outcome.
const (
	Removing    = "removing a lock that is due"
	WouldRemove = "would remove a lock that is due (dry run)"

	Removed  = "lock removed"
	Unlocked = "lock removed by a person"
	// UnlockRequested is the outcome of a request to the API.
	UnlockRequested = "unlock requested by the API"
	BadRecord       = "a record of a manual unlock cannot be used"
	Conflict        = "lock not removed: modified or released concurrently"
	Withdrawn       = "lock not removed: a hold began, or it is due later"
	Refused         = "lock not removed: etcd refused"
	Ambiguous       = "removal ambiguous: no answer from etcd"
	CannotRemove    = "lock cannot be removed"
	CannotRead      = "cannot read locks that are due"
	Waiting         = "a lock past its deadline is still there"
	CannotLog       = "lock not removed: its record cannot be logged"
)
