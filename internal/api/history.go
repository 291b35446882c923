package api

import (
	"fmt"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// History answers GET /api/v1/history: who held a lock, as far as the old revisions that etcd
// still has show. etcd keeps no times: all times are those that holders and daemons wrote down.
type History struct {
	Name string `json:"name"`
	// Now is when the history was read, according to the clock of the host that read it.
	Now time.Time `json:"now"`
	// Revision is the newest revision that was read, FromRevision the oldest. Before that,
	// nothing is known.
	Revision     int64 `json:"revision"`
	FromRevision int64 `json:"from_revision"`
	// Compacted reports whether the history begins where etcd has removed older revisions.
	Compacted bool `json:"compacted"`
	// Truncated reports whether etcd has older revisions that were not read: there are as many
	// periods as were asked for, or no time was left.
	Truncated bool `json:"truncated"`
	// Periods are the times during which the lock was held, the newest first.
	Periods []Period `json:"periods"`
	// Incomplete says why what the records of removals and the daemons know of the ends
	// is missing or may be; left out if nothing is.
	Incomplete string `json:"incomplete,omitempty"`
}

// Period is the time during which a lock was held under one uuid.
type Period struct {
	// Token is the fencing token. Two periods have the same one where a client overwrote the uuid.
	Token    int64  `json:"token"`
	UUID     string `json:"uuid,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Purpose  string `json:"purpose,omitempty"`
	// Acquired is the acquisition; its time is locked_at.
	Acquired Moment `json:"acquired"`
	// AliveAt is when the holder last renewed, and AutoUnlockAt its last deadline, both by its
	// clock.
	AliveAt      time.Time `json:"alive_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	// Renewals are the newest renewals, the newest first. MoreRenewals is the number of older ones.
	Renewals     []Renewal `json:"renewals"`
	MoreRenewals int64     `json:"more_renewals,omitempty"`
	// ClockOffset is the holder's clock minus that of the daemon, in seconds, by which the times that the holder wrote
	// down are corrected here. It is left out where the daemon has not observed it, or it is within the tolerance.
	ClockOffset float64 `json:"clock_offset,omitempty"`
	// Ended is left out for the present holder.
	Ended *Ended `json:"ended,omitempty"`
}

// Renewed is how often the lock was renewed in the period.
func (p *Period) Renewed() int64 { return int64(len(p.Renewals)) + p.MoreRenewals }

// LeastMargin returns the least margin of the renewals, or nil if none is known.
func (p *Period) LeastMargin() (least *float64) {
	for _, r := range p.Renewals {
		if r.Margin != nil && (least == nil || *r.Margin < *least) {
			least = r.Margin
		}
	}
	return least
}

// Moment is a revision, and its time if it is known.
type Moment struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at,omitzero"`
}

// Renewal is one renewal; its time is alive_at.
type Renewal struct {
	Moment
	// Margin is the share of the patience that was left, from 0 (at or past the deadline) to 1.
	// It is left out where the times of the lock do not tell.
	Margin *float64 `json:"margin,omitempty"`
}

// Ended is how a period ended.
type Ended struct {
	// Moment is the deletion. Its time is known only from a record or from a daemon.
	Moment
	// How is one of the constants below.
	How string `json:"how"`
	// By is Self or Other, as in a forced unlock. It is left out where no daemon is asked or
	// none knows of it.
	By string `json:"by,omitempty"`
	// Replica is the identity of the daemon that removed it, from its record.
	Replica string `json:"replica,omitempty"`
	// Who removed it, as user@host, and Reason say more about a manual unlock.
	Who    string `json:"who,omitempty"`
	Reason string `json:"reason,omitempty"`
	// After and Before are the nearest times before and after the end that holders wrote down,
	// by their clocks.
	After  time.Time `json:"after,omitzero"`
	Before time.Time `json:"before,omitzero"`
	// Leftovers is the number of keys that stayed.
	Leftovers int `json:"leftovers,omitempty"`
}

// How a period ended.
const (
	// EndReleased is a deletion before the deadline, by the holder or another client: etcd does not
	// keep who.
	EndReleased = "released"
	// EndExpired is a removal by a daemon, which knows of it or left a record.
	EndExpired = "expired"
	// EndManual is a manual unlock that left a record.
	EndManual = "manual"
	// EndLate is a deletion past the deadline, by a client that etcd does not record.
	EndLate = "removed_late"
	// EndRemoved is a deletion of which is not known whether it was past the deadline.
	EndRemoved = "removed"
	// EndOverwritten is the end by another uuid that a client put without deleting this one.
	EndOverwritten = "overwritten"
)

// Rhythm is how a holder renews its lock, as the daemon has observed it. Nothing in a verdict depends on it.
type Rhythm struct {
	// RenewedAt is when the last renewal arrived, according to the clock of the daemon.
	RenewedAt time.Time `json:"renewed_at"`
	// Interval is the usual time between two renewals, in seconds.
	Interval float64 `json:"renewal_interval_seconds"`
	// Missed counts the renewals that have not come since; the time in outages of etcd does not count.
	Missed int `json:"missed_renewals"`
}

// Silent is how many renewals a holder has missed that is called silent: that many are no hiccup.
const Silent = 3

// Silent reports whether the holder is silent; without a rhythm, that is not known.
func (r *Rhythm) Silent() bool { return r != nil && r.Missed >= Silent }

// Words are what precedes and what follows the time since the last renewal in the sentence that says whether the holder
// is alive. They are for a page, whose times count on.
func (r *Rhythm) Words() [2]string {
	every := time.Duration(r.Interval * float64(time.Second))
	if r.Missed == 0 {
		return [2]string{"renewed ", fmt.Sprintf(" ago, every %s", every)}
	}
	return [2]string{"not renewed for ", fmt.Sprintf(", %d missed, every %s before", r.Missed, every)}
}

// Sentence says at a time, according to the clock of the daemon, whether the holder is alive: "renewed 8s ago, every 40s"; "" where
// there is no rhythm.
func (r *Rhythm) Sentence(now time.Time) string {
	if r == nil {
		return ""
	}
	words := r.Words()
	return words[0] + terminal.Duration(max(0, now.Sub(r.RenewedAt))) + words[1]
}
