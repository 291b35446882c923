package api

import (
	"fmt"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// History answers GET /api/v1/history: who held a lock, as far as the old revisions that etcd
// still has show. etcd keeps no times: all times are those that holders and daemons wrote down.
type History struct {
	Name         string    `json:"name"`
	Now          time.Time `json:"now"`
	Revision     int64     `json:"revision"`
	FromRevision int64     `json:"from_revision"`
	Compacted    bool      `json:"compacted"`
	Truncated    bool      `json:"truncated"`
	Periods      []Period  `json:"periods"`
	Incomplete   string    `json:"incomplete,omitempty"`
}

// Period is the time during which a lock was held under one uuid.
type Period struct {
	Token        int64     `json:"token"`
	UUID         string    `json:"uuid,omitempty"`
	Hostname     string    `json:"hostname,omitempty"`
	Owner        string    `json:"owner,omitempty"`
	Purpose      string    `json:"purpose,omitempty"`
	Acquired     Moment    `json:"acquired"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	Renewals     []Renewal `json:"renewals"`
	MoreRenewals int64     `json:"more_renewals,omitempty"`
	ClockOffset  float64   `json:"clock_offset,omitempty"`
	Ended        *Ended    `json:"ended,omitempty"`
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
	Margin *float64 `json:"margin,omitempty"`
}

// Ended is how a period ended.
type Ended struct {
	// Moment is the deletion. Its time is known only from a record or from a daemon.
	Moment
	How       string    `json:"how"`
	By        string    `json:"by,omitempty"`
	Replica   string    `json:"replica,omitempty"`
	Who       string    `json:"who,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	After     time.Time `json:"after,omitzero"`
	Before    time.Time `json:"before,omitzero"`
	Leftovers int       `json:"leftovers,omitempty"`
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
	RenewedAt time.Time `json:"renewed_at"`
	Interval  float64   `json:"renewal_interval_seconds"`
	Missed    int       `json:"missed_renewals"`
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

// Sentence says at a time, according to the clock of the daemon, whether the holder is alive: "renewed 8s ago, every
// 40s"; "" where there is no rhythm.
func (r *Rhythm) Sentence(now time.Time) string {
	if r == nil {
		return ""
	}
	words := r.Words()
	return words[0] + terminal.Duration(max(0, now.Sub(r.RenewedAt))) + words[1]
}
