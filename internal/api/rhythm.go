package api

import (
	"fmt"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
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
