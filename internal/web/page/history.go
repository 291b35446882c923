package page

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// History is who held a lock lately.
type History struct {
	api.History
	Timeline timeline
}

// NewHistory prepares the history of a lock for its page.
func NewHistory(h api.History) *History { return &History{h, newTimeline(&h)} }

// Present returns the present holder's period, or nil.
func (h *History) Present() *api.Period {
	if len(h.Periods) == 0 || h.Periods[0].Ended != nil {
		return nil
	}
	return &h.Periods[0]
}

// Last returns the newest period if it has ended, or nil.
func (h *History) Last() *api.Period {
	if len(h.Periods) == 0 || h.Periods[0].Ended == nil {
		return nil
	}
	return &h.Periods[0]
}

// HeldFor says for how long the lock was held in a period; empty if nothing is known.
func (h *History) HeldFor(p api.Period) string {
	from := p.Acquired.At
	switch e := p.Ended; {
	case from.IsZero():
		return ""
	case e == nil:
		return lasted("", from, h.Now)
	case !e.At.IsZero():
		return lasted("", from, e.At)
	case !e.After.IsZero() && e.After.After(from):
		return lasted("at least ", from, e.After)
	case !e.Before.IsZero():
		return lasted("at most ", from, e.Before)
	}
	return ""
}

// lasted is empty where the clocks contradict each other.
func lasted(about string, from, to time.Time) string {
	if to.Before(from) {
		return ""
	}
	return about + terminal.Duration(to.Sub(from))
}

// ending says how a period ended.
func ending(e *api.Ended) string {
	if e == nil {
		return "held"
	}
	switch e.How {
	case api.EndReleased:
		return "released"
	case api.EndExpired:
		if e.By == api.Self {
			return "removed by this replica after its deadline"
		}
		return "removed by a replica after its deadline"
	case api.EndManual:
		return "unlocked by a person"
	case api.EndLate:
		return "deleted after its deadline, not known by whom"
	case api.EndOverwritten:
		return "overwritten by another uuid"
	}
	return "deleted, not known by whom"
}
