//go:build hunt

package hunt

import (
	"encoding/binary"
	"os"
	"sync"
	"time"
)

// clock is the clock of a machine.
type clock struct {
	file *os.File // from which a daemon takes it, nil for a holder

	mu    sync.Mutex
	steps []step // the first is before everything else
}

// step is how far the clock is ahead of the true one from an instant on.
type step struct {
	at    time.Time
	ahead time.Duration
}

// set sets the clock. That of a daemon counts in whole seconds.
func (c *clock) set(ahead time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, step{time.Now(), ahead})
	if c.file == nil {
		return nil
	}
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)), 0)
	return err
}

// ahead returns how far the clock is ahead now.
func (c *clock) ahead() time.Duration {
	_, most := c.within(span{From: time.Now(), To: time.Now()})
	return most
}

// within returns how far the clock was ahead within s, at least and at most.
func (c *clock) within(s span) (least, most time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	least, most = c.steps[0].ahead, c.steps[0].ahead
	for _, st := range c.steps[1:] {
		switch {
		case st.at.After(s.To):
			return least, most
		case !st.at.After(s.From):
			least, most = st.ahead, st.ahead
		default:
			least, most = min(least, st.ahead), max(most, st.ahead)
		}
	}
	return least, most
}
