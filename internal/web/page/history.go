package page

import (
	"cmp"
	"fmt"
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
func (h *History) Present() *api.Period { return h.newest(false) }

// Last returns the newest period if it has ended, or nil.
func (h *History) Last() *api.Period { return h.newest(true) }

func (h *History) newest(ended bool) *api.Period {
	if len(h.Periods) == 0 || (h.Periods[0].Ended != nil) != ended {
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

func ending(e *api.Ended) string {
	if e == nil {
		return "held"
	}
	return cmp.Or(map[string]string{
		api.EndReleased: "released", api.EndExpired: "removed by a replica after its deadline", api.EndManual: "unlocked manually",
		api.EndLate: "deleted after its deadline, not known by whom", api.EndOverwritten: "overwritten by another uuid",
	}[e.How], "deleted, not known by whom")
}

// Limits of what is drawn.
const (
	maxBars  = 50
	maxTicks = 300
)

// timeline is a drawing of who held a lock lately, from left to right. All positions are shares of
// its width, in percent.
type timeline struct {
	From, To time.Time
	Bars     []bar
	// Ticks are the renewals.
	Ticks []percent
}

// percent prints as a value of SVG.
type percent float64

func (p percent) String() string { return fmt.Sprintf("%.2f%%", float64(p)) }

type bar struct {
	// N is the number of the period in the table.
	N int
	// Known is for how long the lock was held at least. Its end is between that of Known and
	// that of Unsure.
	X, Known, End, Unsure percent
	How                   string // one of the ends of package api, or held
}

// Forced reports whether another than the holder ended it, as far as is known.
func (b bar) Forced() bool {
	return b.How == api.EndExpired || b.How == api.EndManual || b.How == api.EndLate
}

// newTimeline draws the newest periods. Clocks of holders are not trusted: no period begins before
// an older one has, none is in the future.
func newTimeline(h *api.History) timeline {
	periods := h.Periods[:min(len(h.Periods), maxBars)]
	if len(periods) == 0 {
		return timeline{}
	}
	spans := spansOf(periods, h.Now)
	t := timeline{From: spans[len(spans)-1].start, To: h.Now}
	for i := range periods {
		s := spans[i]
		b := bar{N: i + 1, X: min(t.at(s.start), 100-minWidth), End: t.at(s.known), How: "held"}
		b.Known, b.Unsure = max(b.End-b.X, minWidth), t.at(s.unsure)-b.End
		if e := periods[i].Ended; e != nil {
			b.How = e.How
		}
		t.Bars = append(t.Bars, b)
		for _, r := range periods[i].Renewals {
			if len(t.Ticks) < maxTicks && !r.At.IsZero() {
				t.Ticks = append(t.Ticks, t.at(between(s.start, r.At, s.unsure)))
			}
		}
	}
	return t
}

// minWidth is that of a bar, so that the shortest period is visible.
const minWidth percent = 0.3

func (t *timeline) at(moment time.Time) percent {
	if whole := t.To.Sub(t.From); whole > 0 {
		return percent(100 * float64(moment.Sub(t.From)) / float64(whole))
	}
	return 0
}

// span is when a period began, until when it lasted for certain, and by when it had ended.
type span struct{ start, known, unsure time.Time }

func spansOf(periods []api.Period, now time.Time) []span {
	spans := make([]span, len(periods))
	for i := range periods {
		spans[i] = spanOf(&periods[i], now)
		now = spans[i].start
	}
	return spans
}

// spanOf returns the span of a period that had ended by limit.
func spanOf(p *api.Period, limit time.Time) (s span) {
	s.start = between(time.Time{}, cmp.Or(p.Acquired.At, p.AliveAt, limit), limit)
	s.known, s.unsure = limit, limit
	switch e := p.Ended; {
	case e == nil:
	case !e.At.IsZero():
		s.known = between(s.start, e.At, limit)
		s.unsure = s.known
	default:
		s.known = between(s.start, e.After, limit)
		if !e.Before.IsZero() {
			s.unsure = between(s.known, e.Before, limit)
		}
	}
	return s
}

func between(from, t, to time.Time) time.Time {
	if t.Before(from) {
		return from
	}
	if t.After(to) {
		return to
	}
	return t
}
