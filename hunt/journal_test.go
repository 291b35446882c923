//go:build hunt

package hunt

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// journal collects what a daemon logs about removals and holds.
type journal struct {
	clock *clock // of the daemon

	mu       sync.Mutex
	announce []*announcement
	outcome  []outcome
	// open are the announcements without an outcome. Those of two holders of a lock may be, where
	// the answer for the first is late; of one holder's lock there is one at a time.
	open map[holding]*announcement
	// twice are those that were announced again before the outcome.
	twice []holding
	holds []holdCount
	ops   string    // the address of the listener for operations
	other []string  // the last lines that are not JSON, such as those of a panic
	ended time.Time // when the daemon ended, and its holds with it
}

// holding identifies what one holder holds.
type holding struct{ name, uuid string }

func newJournal(c *clock) *journal { return &journal{clock: c, open: map[holding]*announcement{}} }

// verdictOn identifies the lock of a verdict.
type verdictOn struct {
	name  string
	token int64
}

// announcement is the record of a verdict. It was made within its span, and nothing was sent
// before that.
type announcement struct {
	name, uuid string
	verdict    verdict.Verdict
	span
}

type outcome struct {
	*announcement
	uuid     string
	revision int64
	message  string
}

// line is a line of the log.
type line struct {
	Message  string          `json:"msg"`
	Lock     string          `json:"lock"`
	UUID     string          `json:"uuid"`
	Revision int64           `json:"revision"`
	Verdict  verdict.Verdict `json:"verdict"`
	Record   struct {
		UUID string `json:"uuid"`
	} `json:"record"`
	Ops string `json:"ops"`
}

// maxLag is the maximum time from the writing of a line until it is read.
const maxLag = 10 * time.Second

// read reads the log until the daemon ends.
func (j *journal) read(from io.Reader) {
	for lines := bufio.NewReader(from); ; {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return // what is after the last newline was cut off by the end
		}
		now, l := time.Now(), line{}
		if json.Unmarshal(text, &l) != nil {
			l = line{}
		}
		j.take(&l, string(text), now)
	}
}

func (j *journal) take(l *line, text string, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch l.Message {
	case "":
		j.other = append(j.other[max(0, len(j.other)-20):], text)
	case api.LogStarted:
		j.ops = l.Ops
	case api.LogRemoving:
		_, ahead := j.clock.within(span{now.Add(-maxLag), now})
		a := &announcement{l.Lock, l.Record.UUID, l.Verdict, span{l.Verdict.Now.Add(-ahead), now}}
		of := holding{a.name, a.uuid}
		if j.open[of] != nil {
			j.twice = append(j.twice, of)
		}
		j.announce, j.open[of] = append(j.announce, a), a
	case api.LogHoldBegins:
		j.hold(1, now)
	case api.LogHoldEnds:
		j.hold(-1, now)
	case api.LogRemoved, api.LogConflict, api.LogWithdrawn, api.LogRefused, api.LogAmbiguous, api.LogCannotRemove:
		of := holding{l.Lock, l.UUID}
		j.outcome = append(j.outcome, outcome{j.open[of], l.UUID, l.Revision, l.Message})
		delete(j.open, of)
	}
}

// holdCount is the number of holds in force from a time on.
type holdCount struct {
	at time.Time
	n  int
}

// hold adds change to the number of holds in force.
func (j *journal) hold(change int, now time.Time) {
	n := change
	if last := len(j.holds); last > 0 {
		n += j.holds[last-1].n
	}
	j.holds = append(j.holds, holdCount{now, n})
}

// held returns the times before now at which a hold was in force.
func (j *journal) held(now time.Time) (all []span) {
	if !j.ended.IsZero() && j.ended.Before(now) {
		now = j.ended
	}
	for i, h := range j.holds {
		to := now
		if i+1 < len(j.holds) {
			to = j.holds[i+1].at
		}
		if h.n > 0 {
			all = append(all, span{h.at, to})
		}
	}
	return all
}

// removals returns the removals that the log has.
func (j *journal) removals() []outcome {
	return slices.DeleteFunc(slices.Clone(j.outcome), func(o outcome) bool { return o.message != api.LogRemoved })
}

// ambiguous returns the announcements of which the log does not say whether the lock was removed:
// there was no answer from etcd, or the daemon was killed.
func (j *journal) ambiguous() (all []*announcement) {
	for _, o := range j.outcome {
		if o.message == api.LogAmbiguous && o.announcement != nil {
			all = append(all, o.announcement)
		}
	}
	return slices.AppendSeq(all, maps.Values(j.open))
}

func (j *journal) listener() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ops
}

func (j *journal) tail() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.other, "")
}
