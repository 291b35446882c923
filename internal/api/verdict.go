package api

import "time"

// Verdict is what the daemon decides on a lock, with everything that the decision depends
// on, under the names that the log lines of a removal use. Durations are nanoseconds.
type Verdict struct {
	// Now is the daemon's clock at the time of the decision.
	Now time.Time `json:"now"`
	// The lock's times, by its holder's clock. Renewed reports whether auto_unlock_at was
	// written after the acquisition.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	Renewed      bool      `json:"renewed,omitempty"`
	// OrphanDue is when an orphan has been unmodified for long enough.
	OrphanDue time.Time `json:"orphan_due,omitzero"`
	// Removable reports whether the lock is of a kind that is ever removed automatically.
	Removable bool `json:"removable"`
	// Token is the fencing token, Revision the newest revision of the lock's keys.
	Token    int64 `json:"token,omitempty"`
	Revision int64 `json:"revision"`
	// Measured reports whether the holder's clock has been compared with the daemon's:
	// Offset is the holder's minus the daemon's. Age is the time since the daemon saw the
	// lock's last write, or found the lock. Anchor is the time until the deadline as the
	// daemon's monotonic clock has it; negative once that has passed.
	Measured bool          `json:"measured"`
	Offset   time.Duration `json:"offset,omitempty"`
	Age      time.Duration `json:"age"`
	Anchor   time.Duration `json:"anchor"`
	// Credit is the outage allowance: for how long the holder could not renew.
	Credit time.Duration `json:"credit,omitempty"`
	// The rules that apply to the lock. Policy is the pattern that matched, if any.
	Policy       string        `json:"policy,omitempty"`
	Mode         string        `json:"mode"`
	Grace        time.Duration `json:"grace"`
	Tolerance    time.Duration `json:"tolerance"`
	Settle       time.Duration `json:"settle"`
	StandbyDelay time.Duration `json:"standby_delay"`
	// Leader reports whether this replica acts first.
	Leader bool `json:"leader"`

	// Action is remove, report (a dry run), wait (for Left), or leave (for people).
	Action string `json:"action"`
	// Trigger is expiry or orphan, left out for a lock that is never due.
	Trigger string `json:"trigger,omitempty"`
	// Due is the earliest time at which the lock may be removed, by the daemon's clock;
	// Left is the time that remains until this replica removes it.
	Due  time.Time     `json:"due,omitzero"`
	Left time.Duration `json:"left,omitempty"`
}
