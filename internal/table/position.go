package table

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Position is the place of a lock in an order of locks: by name, or by urgency.
type Position struct {
	// rank is that of the state, from 1; 0 in the order of names, where at is 0, too.
	rank byte
	at   int64 // milliseconds since the epoch
	name string
}

func (p Position) compare(q Position) int {
	return cmp.Or(cmp.Compare(p.rank, q.rank), cmp.Compare(p.at, q.at), strings.Compare(p.name, q.name))
}

// noTime is after all times.
const noTime = 99_999_999_999_999

// urgency returns the position of a lock in the order of urgency, by the daemon's clock as of its
// last step, so that no position changes with the jitter of clocks.
func (c *core) urgency(e *entry, state protocol.State) Position {
	rank, at := e.Urgency(state)
	p := Position{rank: rank, at: noTime, name: e.Name}
	if at != 0 {
		ahead := c.ahead(e, reading{wall: protocol.Timestamp(c.clock.last)})
		p.at = max(0, int64(at)/int64(time.Millisecond)-ahead.Milliseconds())
	}
	return p
}

// String returns the text whose order, byte by byte, is that of the positions.
func (p Position) String() string {
	if p.rank == 0 {
		return p.name
	}
	return fmt.Sprintf("%d%014d%s", p.rank, p.at, p.name)
}

// urgencyDigits is the length of what precedes the name.
const urgencyDigits = 15

// ParsePosition parses what String has returned for an order.
func ParsePosition(text string, byUrgency bool) (Position, error) {
	if !byUrgency {
		return Position{name: text}, nil
	}
	if len(text) <= urgencyDigits || text[0] < '1' || text[0] > '6' {
		return Position{}, errors.New("not a position in the order of urgency")
	}
	at, err := strconv.ParseUint(text[1:urgencyDigits], 10, 63)
	if err != nil {
		return Position{}, err
	}
	return Position{rank: text[0] - '0', at: int64(at), name: text[urgencyDigits:]}, nil
}
