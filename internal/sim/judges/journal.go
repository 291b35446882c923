package judges

import (
	"maps"
	"slices"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Line is a line of a daemon's log, as far as it is judged.
type Line struct {
	Message  string          `json:"msg"`
	Lock     string          `json:"lock"`
	UUID     string          `json:"uuid"`
	Revision int64           `json:"revision"`
	Hold     string          `json:"hold"`
	Verdict  verdict.Verdict `json:"verdict"`
	Record   map[string]any  `json:"record"`
	Ops      string          `json:"ops"`
}

// Journal is what a daemon logs about removals.
type Journal struct {
	// Announced are the records of removals, Outcomes the lines after them.
	Announced []*Announcement
	Outcomes  []Outcome
	// open are the announcements without an outcome. Those of two holders of a lock may be, where
	// the answer for the first is late; of one holder's lock there is one at a time.
	open map[holding]*Announcement
	last map[string]*Announcement // by lock
}

// holding identifies what one holder holds.
type holding struct{ lock, uuid string }

// Announcement is the record of a removal. It was made within At, and nothing was sent before.
type Announcement struct {
	Lock, UUID, Deadline string
	Verdict              verdict.Verdict
	At                   Span
	// Sent is set where it is known that the removal was sent.
	Sent bool
	// Outcome is the message of the line after it, "" while there is none.
	Outcome string
}

// Outcome is the line after a removal, with its announcement if there is one.
type Outcome struct {
	*Announcement
	UUID     string
	Revision int64
	Message  string
}

// Take reads a line that was written within a time, and judges S7.
func (j *Journal) Take(l *Line, at Span) (all []Violation) {
	if j.open == nil {
		j.open, j.last = make(map[holding]*Announcement), make(map[string]*Announcement)
	}
	switch l.Message {
	case api.LogRemoving:
		a := &Announcement{Lock: l.Lock, Verdict: l.Verdict, At: at}
		a.UUID, _ = l.Record["uuid"].(string)
		a.Deadline, _ = l.Record["auto_unlock_at"].(string)
		of := holding{a.Lock, a.UUID}
		if j.open[of] != nil {
			all = append(all, Violation{"S7", "announced again before the outcome"})
		}
		if len(l.Record) == 0 {
			all = append(all, Violation{"S7", "the record in the log has no fields"})
		}
		j.Announced, j.open[of], j.last[a.Lock] = append(j.Announced, a), a, a
	case api.LogRemoved, api.LogConflict, api.LogWithdrawn, api.LogRefused, api.LogAmbiguous, api.LogCannotRemove:
		of := holding{l.Lock, l.UUID}
		a := j.open[of]
		if delete(j.open, of); a != nil {
			a.Outcome = l.Message
		}
		j.Outcomes = append(j.Outcomes, Outcome{a, l.UUID, l.Revision, l.Message})
	}
	return all
}

// Last returns the newest announcement of a lock that may still be carried out: it has no outcome,
// or there was no answer. nil if there is none.
func (j *Journal) Last(lock string) *Announcement {
	if a := j.last[lock]; a != nil && (a.Outcome == "" || a.Outcome == api.LogAmbiguous) {
		return a
	}
	return nil
}

// Open returns the announcements without an outcome.
func (j *Journal) Open() []*Announcement { return slices.Collect(maps.Values(j.open)) }

// Removals returns the removals that the log has.
func (j *Journal) Removals() []Outcome {
	return slices.DeleteFunc(slices.Clone(j.Outcomes), func(o Outcome) bool { return o.Message != api.LogRemoved })
}

// Ambiguous returns the announcements of which the log does not say whether the lock was removed:
// there was no answer from etcd, or the daemon was killed.
func (j *Journal) Ambiguous() []*Announcement {
	all := j.Open()
	for _, o := range j.Outcomes {
		if o.Message == api.LogAmbiguous && o.Announcement != nil {
			all = append(all, o.Announcement)
		}
	}
	return all
}

// Matches reports whether the lock is still the one that the verdict was made on.
func (a *Announcement) Matches(l *Lock) bool {
	return l.Value("uuid") == a.UUID && l.Newest() <= a.Verdict.Revision &&
		(a.Verdict.Trigger == verdict.Orphan || l.Value("auto_unlock_at") == a.Deadline)
}
