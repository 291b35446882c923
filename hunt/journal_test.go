//go:build hunt

package hunt

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// journal collects what a daemon logs about removals and holds.
type journal struct {
	clock *clock // of the daemon

	mu sync.Mutex
	judges.Journal
	wrong []string // violations
	holds []holdCount
	ops   string    // the address of the listener for operations
	other []string  // the last lines that are not JSON, such as those of a panic
	ended time.Time // when the daemon ended, and its holds with it
}

func newJournal(c *clock) *journal { return &journal{clock: c} }

// maxLag is the maximum time from the writing of a line until it is read.
const maxLag = 10 * time.Second

// read reads the log until the daemon ends.
func (j *journal) read(from io.Reader) {
	for lines := bufio.NewReader(from); ; {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return // what is after the last newline was cut off by the end
		}
		now, l := time.Now(), judges.Line{}
		if json.Unmarshal(text, &l) != nil {
			l = judges.Line{}
		}
		j.take(&l, string(text), now)
	}
}

func (j *journal) take(l *judges.Line, text string, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch l.Message {
	case "":
		j.other = append(j.other[max(0, len(j.other)-20):], text)
	case api.LogStarted:
		j.ops = l.Ops
	case api.LogHoldBegins:
		j.hold(1, now)
	case api.LogHoldEnds:
		j.hold(-1, now)
	}
	_, ahead := j.clock.within(span{From: now.Add(-maxLag), To: now})
	for _, v := range j.Take(l, span{From: l.Verdict.Now.Add(-ahead), To: now}) {
		j.wrong = append(j.wrong, fmt.Sprintf("%s: the removal of %s was %s", v.Promise, l.Lock, v.Text))
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
			all = append(all, span{From: h.at, To: to})
		}
	}
	return all
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
