package judges

import (
	"fmt"
	"slices"
	"time"
)

// Rules are those values of the configuration that are judged by.
type Rules struct {
	Grace, StandbyDelay time.Duration
	// Slack is by how much a time may be early that is not exact.
	Slack time.Duration
}

// Sending is what is known of a removal when it is sent, or of when etcd carries it out.
type Sending struct {
	// Logged is set if its record was in the log.
	Logged bool
	// At is when it was sent at the latest, or carried out.
	At    time.Time
	Holds []Hold
	// Passes is when the clock of its holder passes the deadline, or when its patience ends after
	// late knowledge; Why says which.
	Passes time.Time
	Why    string
	// Outages is how long etcd could take no renewal since the last write, and Renewable when it
	// could be renewed until, with the outages added. Zero without outages.
	Outages   time.Duration
	Renewable time.Time
	// Shown is when the newest probe began that has shown that etcd takes renewals, and Needed when it must have
	// begun at the earliest.
	Shown, Needed time.Time
	// Deadline is auto_unlock_at, Clock what the clock of the daemon showed at the latest. Leads is
	// set if the daemon may have led.
	Deadline, Clock time.Time
	Leads           bool
}

// Hold is a time in which a daemon must send nothing. The daemon acted within Acted.
type Hold struct {
	// Hold is its name in the API, "" for none.
	Hold, Why string
	In, Acted Span
}

// Broken reports whether the daemon acted in the hold for certain.
func (h Hold) Broken() bool { return h.Acted.From.After(h.In.From) && h.Acted.To.Before(h.In.To) }

// Judge judges S7 (announced), S3 (holds, outages), S2 and S6 (the standby waits).
func (s Sending) Judge(r Rules) (all []Violation) {
	convict := func(promise, format string, args ...any) {
		all = append(all, Violation{promise, fmt.Sprintf(format, args...)})
	}
	if !s.Logged {
		convict("S7", "sent without its record in the log")
		return all
	}
	if i := slices.IndexFunc(s.Holds, Hold.Broken); i >= 0 {
		h := s.Holds[i]
		convict("S3", "sent during a hold: %s %s, from %s before until %s after", h.Hold, h.Why, h.Acted.To.Sub(h.In.From), h.In.To.Sub(h.Acted.To))
	}
	if early := s.Passes.Sub(s.At); !s.Passes.IsZero() && early > r.Slack {
		convict("S2", "%s early: %s", early, s.Why)
	}
	if early := s.Renewable.Sub(s.At); s.Outages > 0 && early > r.Slack {
		convict("S3", "%s early: %s, and outages of %s", early, s.Why, s.Outages)
	}
	if old := s.Needed.Sub(s.Shown); old > 0 {
		convict("S3", "sent by a probe that began %s too early", old)
	}
	delay := r.Grace
	if !s.Leads {
		delay += r.StandbyDelay
	}
	if left := s.Deadline.Add(delay).Sub(s.Clock); !s.Deadline.IsZero() && left > r.Slack {
		convict("S6", "%s before the clock of its daemon shows the deadline and %s", left, delay)
	}
	return all
}

// Deletion is what is known of a removal that etcd carried out.
type Deletion struct {
	// Lock is as it was right before, Keys how many of its keys were deleted.
	Lock *Lock
	Keys int
	// Records are the announcements of which one was carried out.
	Records []*Announcement
	// Lives is set if the holder lived, and nothing kept it from renewing: it did so Renewed ago,
	// and does it once in Interval.
	Lives             bool
	Renewed, Interval time.Duration
}

// Judge judges S8, S1, S4 and S3 (the living).
func (d Deletion) Judge(r Rules) (all []Violation) {
	convict := func(promise, format string, args ...any) {
		all = append(all, Violation{promise, fmt.Sprintf(format, args...)})
	}
	l := d.Lock
	if _, dated := l.Deadline(); l.Held() && !dated {
		convict("S8", "removed with the deadline %q", l.Value("auto_unlock_at"))
	}
	switch {
	case len(d.Records) == 0:
		convict("S4", "deleted %d keys of a lock on which there was no verdict", d.Keys)
		return all
	case !slices.ContainsFunc(d.Records, func(a *Announcement) bool { return a.Matches(l) }):
		a := d.Records[len(d.Records)-1]
		convict("S1", "uuid %s, deadline %s, revision %d; the verdict was on %s, %s, %d",
			l.Value("uuid"), l.Value("auto_unlock_at"), l.Newest(), a.UUID, a.Deadline, a.Verdict.Revision)
	}
	if d.Keys != len(l.Fields) {
		convict("S4", "deleted %d of %d keys", d.Keys, len(l.Fields))
	}
	if d.Lives && d.Renewed <= d.Interval+r.Slack {
		convict("S3", "its holder lives, and renewed %s before, interval %s", d.Renewed, d.Interval)
	}
	return all
}

// Stays judges S6 of a lock that was still there at an instant, and should have been removed.
func Stays(at, latest time.Time) (all []Violation) {
	if at.After(latest) {
		all = append(all, Violation{"S6", fmt.Sprintf("still there %s after it should have been removed at the latest", at.Sub(latest))})
	}
	return all
}
