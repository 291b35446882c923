package api

// The log messages that alerts, runbooks, tests, the demo or scripts of users search for: part of
// the interface, as the types are. A test requires that docs/operations.md has each of them.

// Start and stop of the daemon.
const (
	LogConfigurationRead = "configuration read"
	LogStarted           = "unlocker started"
	LogStopping          = "stopping"
	LogStopped           = "stopped"
	LogFailed            = "unlocker failed"
)

// The watch and the election.
const (
	LogListed          = "listed the locks"
	LogWatchFailed     = "watch failed; relisting"
	LogPrefixFailed    = "watch on a daemon prefix failed; relisting"
	LogKeysOmitted     = "key limit exceeded; ignoring some keys"
	LogNativeNotListed = "a prefix of native_prefixes cannot be listed"
	LogMemberHangs     = "etcd member hangs while another answers; closing the connection"
	LogStaleReads      = "etcd member may answer reads with old data after a pause of its process; upgrade it"
	LogLeading         = "elected leader"
	LogNotLeading      = "no longer the leader"
	LogElectionFailed  = "election attempt failed; retrying"
)

// Holds.
const (
	LogHoldBegins = "hold begins: no lock is removed automatically"
	LogHoldEnds   = "hold ends"
	LogDryRun     = "dry run: no lock is removed automatically"
)

// A storm, as each replica sees it.
const (
	LogStormBegins = "storm begins: many locks came due at once; the removal of further ones is delayed"
	LogStormEnds   = "storm ends: no lock is delayed any more"
)

// Pauses, of all locks or of some.
const (
	LogPauseBegins = "pause begins: matching locks are not removed automatically"
	LogPauseEnds   = "pause ends"
	LogResumed     = "pause ended by a request to the API"
	LogPauseBroken = "the record of a pause cannot be read: no lock is removed automatically"
)

// LogDeadlock is about holders that wait.
const LogDeadlock = "deadlock: holders wait for each other"

// A removal: one message before it is sent, one with its outcome.
const (
	LogRemoving    = "removing a lock that is due"
	LogWouldRemove = "would remove a lock that is due (dry run)"

	LogRemoved  = "lock removed"
	LogUnlocked = "lock unlocked manually"
	// LogUnlockRequested is the outcome of a request to the API.
	LogUnlockRequested = "unlock requested by the API"
	LogBadRecord       = "a record of a removal cannot be used"
	LogManyUnlocks     = "too many manual unlocks at a time to log each"
	LogBrakeEnds       = "brake ends: locks of this name are removed again"
	LogRecordsDropped  = "records of removals cannot be written; dropping them"
	LogConflict        = "lock not removed: modified or released concurrently"
	LogWithdrawn       = "lock not removed: a hold began, or it is due later"
	LogRefused         = "lock not removed: etcd refused"
	LogPresumed        = "lock presumed removed: it vanished while the answer was missing"
	LogAmbiguous       = "removal ambiguous: no answer from etcd"
	LogCannotRemove    = "lock cannot be removed"
	LogCannotRead      = "cannot read locks that are due"
	LogWaiting         = "a lock past its deadline is still there"
	LogCannotLog       = "lock not removed: its record cannot be logged"
)
