package judges

import (
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Election follows which daemon leads: the one with the oldest key below Prefix.
type Election struct {
	Prefix     string
	Candidates []Candidate // in the order of their keys' creation
	Reigns     []Reign
}

// Candidate is the key of a daemon that wants to lead.
type Candidate struct{ Key, Identity string }

// Reign is the time in which a daemon led, or none with the identity "". Its revisions are From
// and, unless it lasts, To.
type Reign struct {
	Identity     string
	From, To     int64
	Began, Ended time.Time
}

// Apply applies an event that was seen at an instant.
func (e *Election) Apply(ev *mvccpb.Event, at time.Time) {
	key := string(ev.Kv.Key)
	switch {
	case !strings.HasPrefix(key, e.Prefix):
		return
	case ev.Type == mvccpb.Event_DELETE:
		e.Candidates = slices.DeleteFunc(slices.Clone(e.Candidates), func(c Candidate) bool { return c.Key == key })
	case ev.Kv.CreateRevision == ev.Kv.ModRevision:
		e.Candidates = append(slices.Clip(e.Candidates), Candidate{key, string(ev.Kv.Value)})
	}
	e.update(ev.Kv.ModRevision, at)
}

// Restore replaces the candidates by those of a backup.
func (e *Election) Restore(backup []Candidate, at time.Time) {
	e.Candidates = backup
	e.update(0, at)
}

func (e *Election) update(revision int64, at time.Time) {
	leader := ""
	if len(e.Candidates) > 0 {
		leader = e.Candidates[0].Identity
	}
	if last := len(e.Reigns) - 1; last >= 0 {
		if e.Reigns[last].Identity == leader {
			return
		}
		e.Reigns[last].To, e.Reigns[last].Ended = revision, at
	}
	e.Reigns = append(e.Reigns, Reign{Identity: leader, From: revision, Began: at})
}

// Leader returns who leads, "" for none.
func (e *Election) Leader() string {
	if len(e.Reigns) == 0 {
		return ""
	}
	return e.Reigns[len(e.Reigns)-1].Identity
}

// Led reports whether a daemon led at a revision, or until a time after since: it may not have
// noticed yet that it does not.
func (e *Election) Led(is func(identity string) bool, revision int64, since time.Time) bool {
	return slices.ContainsFunc(e.Reigns, func(r Reign) bool {
		return is(r.Identity) && r.From <= revision && (r.Ended.IsZero() || r.To > revision || r.Ended.After(since))
	})
}
