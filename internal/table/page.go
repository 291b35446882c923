package table

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Page is the first locks that match a query, in order.
type Page struct {
	Items []View
	// More reports whether there are more after them, Matched is the number of all locks that
	// match, those before the page included.
	More    bool
	Matched int
}

const (
	// maxBlock bounds the time for which a scan blocks the table at once.
	maxBlock = 250 * time.Microsecond
	// scanBytes is how many bytes of names are compared between two looks at the clock, where each
	// lock costs as much as lockBytes beside its name.
	scanBytes, lockBytes = 16 << 10, 200
)

// Each calls f for each lock, in no order, from one scan of all locks as Pages makes it, with by how much the clock of
// its holder is ahead of ours, if that is known. f must not block, and must not keep the lock.
func (t *Table) Each(ctx context.Context, f func(l *protocol.Lock, ahead time.Duration, known bool)) error {
	_, err := t.sweep(ctx, 1, func(c *core, batch []*entry, now reading) {
		for _, e := range batch {
			f(&e.Lock, c.ahead(e, now), e.has(measured))
		}
	}, func() {})
	return err
}

// sweep calls each with all locks, some at a time, and between whenever it gives way to other calls. queries is
// with how many queries each lock is compared.
func (t *Table) sweep(ctx context.Context, queries int, each func(*core, []*entry, reading), between func()) (blocked time.Duration, err error) {
	next, stop := iter.Pull(t.core.batches(queries))
	defer stop()
	for more := true; more; between() {
		err := t.do(ctx, func(c *core) {
			start := time.Now()
			for now := c.now(); more && time.Since(start) < maxBlock; {
				var batch []*entry
				batch, more = next()
				each(c, batch, now)
			}
			blocked += time.Since(start)
		})
		if err != nil {
			return blocked, err
		}
	}
	return blocked, nil
}

// Page returns the first locks that match. It scans all locks, so it is not for scrapes.
func (t *Table) Page(ctx context.Context, q api.Query) (Page, error) {
	pages, _, err := t.Pages(ctx, []api.Query{q})
	if err != nil {
		return Page{}, err
	}
	return pages[0], nil
}

// Pages returns a page for each query from one scan of all locks. The scan gives way to other
// calls again and again: each lock is shown as it was when the scan came by, one that was added
// meanwhile may be missing, and one that was dropped and added again may be counted twice. blocked
// is for how long the scan blocked the table, in all. The error is api.ErrAfter if a query has an
// After that is not a position in its order.
func (t *Table) Pages(ctx context.Context, queries []api.Query) (pages []Page, blocked time.Duration, err error) {
	found := make([]selection, len(queries))
	for i, q := range queries {
		if found[i], err = newSelection(q); err != nil {
			return nil, 0, err
		}
	}
	trim := func() {
		for i := range found {
			found[i].trim()
		}
	}
	offer := func(c *core, batch []*entry, now reading) { c.offer(batch, found, now) }
	if blocked, err = t.sweep(ctx, len(queries), offer, trim); err != nil {
		return nil, blocked, err
	}
	for i := range found {
		pages = append(pages, found[i].page())
	}
	return pages, blocked, nil
}

// batches returns all locks in any order, so many at a time that it takes little time to compare
// them with the queries. A lock that is dropped and added again while the iteration is suspended may
// be returned twice.
func (c *core) batches(queries int) iter.Seq[[]*entry] {
	return func(yield func([]*entry) bool) {
		var batch []*entry
		size := 0
		for _, e := range c.locks {
			batch = append(batch, e)
			if size += queries * (len(e.Name) + lockBytes); size >= scanBytes {
				if !yield(batch) {
					return
				}
				batch, size = batch[:0], 0
			}
		}
		yield(batch)
	}
}

func (c *core) offer(batch []*entry, found []selection, now reading) {
	for _, e := range batch {
		state := e.State(c.holderTime(e, now))
		for i := range found {
			found[i].offer(c, e, state, now)
		}
	}
}

type selection struct {
	api.Query
	after   Position // nothing up to it is on the page
	items   []View
	full    bool
	last    Position // where full: nothing after it is on the page
	matched int
}

func newSelection(q api.Query) (selection, error) {
	s := selection{Query: q}
	text, err := base64.RawURLEncoding.DecodeString(q.After)
	if err == nil && len(text) > 0 {
		s.after, err = parsePosition(string(text), q.ByUrgency)
	}
	if err != nil {
		return s, api.ErrAfter
	}
	return s, nil
}

func (s *selection) offer(c *core, e *entry, state protocol.State, now reading) {
	if !s.Matches(&e.Lock, state) || s.Silent && !c.alive(e, now).Silent() {
		return
	}
	s.matched++
	at := Position{name: e.Name}
	if s.ByUrgency {
		at = c.urgency(e, state)
	}
	if at.compare(s.after) <= 0 || s.full && at.compare(s.last) > 0 {
		return
	}
	it := c.view(e, now)
	it.Position = at
	s.items = append(s.items, it)
}

// room is for how many items there is room before the scan continues.
const room = 64

// trim cuts the items if there are many more than the page has, and makes room for the next. Both
// would take too long while the scan blocks the table.
func (s *selection) trim() {
	if len(s.items) > 2*s.Limit+room {
		s.cut()
	}
	s.items = slices.Grow(s.items, room)
}

// cut keeps the first of the items, and one more.
func (s *selection) cut() {
	s.once()
	slices.SortFunc(s.items, func(a, b View) int { return a.Position.compare(b.Position) })
	if len(s.items) <= s.Limit {
		return
	}
	clear(s.items[s.Limit+1:])
	s.items = s.items[:s.Limit+1]
	s.full, s.last = true, s.items[s.Limit].Position
}

// once removes what the scan returned twice, and keeps the newer.
func (s *selection) once() {
	slices.SortFunc(s.items, func(a, b View) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), b.At.Compare(a.At))
	})
	n := len(s.items)
	s.items = slices.CompactFunc(s.items, func(a, b View) bool { return a.Name == b.Name })
	s.matched -= n - len(s.items)
}

func (s *selection) page() Page {
	s.cut()
	p := Page{Items: s.items, More: s.full, Matched: s.matched}
	p.Items = p.Items[:min(len(p.Items), s.Limit)]
	return p
}

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
	if state = c.options.Rules.Urgent(e.Name, state); e.phase == paused {
		state = protocol.Held // a user has acknowledged it
	}
	rank, at := e.Urgency(state)
	p := Position{rank: rank, at: noTime, name: e.Name}
	if at != 0 {
		ahead := c.ahead(e, c.clock.last)
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

// After returns the After of a query for the page that begins after the position. It is encoded,
// since a name may contain bytes that are invalid in JSON.
func (p Position) After() string { return base64.RawURLEncoding.EncodeToString([]byte(p.String())) }

// urgencyDigits is the length of what precedes the name.
const urgencyDigits = 15

// parsePosition parses what String has returned for an order.
func parsePosition(text string, byUrgency bool) (Position, error) {
	if !byUrgency {
		return Position{name: text}, nil
	}
	if len(text) <= urgencyDigits || text[0] < '1' || text[0] > '6' {
		return Position{}, errors.New("not a position in the order of urgency")
	}
	at, err := strconv.ParseUint(text[1:urgencyDigits], 10, 63)
	return Position{rank: text[0] - '0', at: int64(at), name: text[urgencyDigits:]}, err
}
