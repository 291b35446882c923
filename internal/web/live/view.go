package live

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"time"
	"weak"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// view is the window of a query in a format. Equal ones share it.
type view struct {
	query  api.Query
	format Format
	// epoch begins the ids of its events, so that none is taken for that of another view.
	epoch   string
	clients int
	left    time.Time // when the last client left
	// fresh is set by the first pass after a client came to a view that had none.
	fresh bool
	// page is the window as of the last pass, if there was one; only passes replace it. reset is its
	// event, made when a client wants it, and kept while one is sent it.
	page  api.LockPage
	known bool
	reset weak.Pointer[[]byte]
	// status is the newest status event, nil before the first.
	status []byte
	ring   ring
	// grown is closed, and replaced, when there is more for the clients.
	grown chan struct{}
}

// id is that of the n-th event, and of a reset after it.
func (v *view) id(n uint64) string { return v.epoch + "-" + strconv.FormatUint(n, 10) }

// place returns how many of the events a client that has seen an id has, if the next are kept.
func (v *view) place(id string) (n uint64, kept bool) {
	epoch, count, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(count, 10, 64)
	if err != nil || epoch != v.epoch {
		return 0, false
	}
	_, kept = v.ring.after(n)
	return n, kept
}

func (v *view) grow() {
	close(v.grown)
	v.grown = make(chan struct{})
}

// whole returns the reset event of the window.
func (v *view) whole() (*[]byte, error) {
	if reset := v.reset.Value(); reset != nil {
		return reset, nil
	}
	reset, err := v.format.Encode(v.query, v.page, api.Event{Type: api.EventReset, Locks: v.page.Locks, Matched: &v.page.Matched})
	v.reset = weak.Make(&reset)
	return &reset, err
}

// install makes a page the window, and adds the events that lead there; where they are long, all
// clients get the window instead. It returns how many bytes that makes for all clients.
func (v *view) install(page api.LockPage, events [][]byte) (sent int) {
	v.page, v.known, v.reset, v.fresh = page, true, weak.Pointer[[]byte]{}, v.clients > 0
	size := 0
	for _, e := range events {
		size += len(e)
	}
	if size > maxRing/2 {
		v.ring.skip()
		events = nil
	}
	for _, e := range events {
		v.ring.add(e)
	}
	v.grow()
	return size * v.clients
}

// tell adds the status to the events, unless the clients have been sent the same.
func (v *view) tell(s *api.Status) error {
	event, err := v.format.Encode(v.query, v.page, api.Event{Type: api.EventStatus, Status: s})
	if err != nil || bytes.Equal(event, v.status) {
		return err
	}
	v.status = event
	v.ring.add(event)
	v.grow()
	return nil
}

// settle removes duplicate names and clock jitter from the next window.
func settle(old, page api.LockPage) (api.LockPage, map[string]*api.Lock) {
	before := byName(old.Locks)
	seen := make(map[string]bool, len(page.Locks))
	kept := page.Locks[:0]
	for _, l := range page.Locks {
		if seen[l.Name] {
			continue // names that are too long, or not UTF-8, may look the same
		}
		seen[l.Name] = true
		if b := before[l.Name]; b != nil {
			steady(b, &l)
		}
		kept = append(kept, l)
	}
	page.Locks = kept
	return page, before
}

func byName(locks []api.Lock) map[string]*api.Lock {
	named := make(map[string]*api.Lock, len(locks))
	for i := range locks {
		named[locks[i].Name] = &locks[i]
	}
	return named
}

// jitter is the maximum difference of a due, or of a clock's offset, that is not a change.
const jitter = 100 * time.Millisecond

func steady(old, l *api.Lock) {
	if l.Due.Sub(old.Due).Abs() <= jitter {
		l.Due = old.Due
	}
	if o, r := old.Rhythm, l.Rhythm; o != nil && r != nil && r.Missed == o.Missed && r.Interval == o.Interval && r.RenewedAt.Sub(o.RenewedAt).Abs() <= jitter {
		l.Rhythm = o
	}
	if d := l.ClockOffset - old.ClockOffset; d >= -jitter.Seconds() && d <= jitter.Seconds() {
		l.ClockOffset = old.ClockOffset
	}
}

func (v *view) changes(page api.LockPage, before map[string]*api.Lock) (events [][]byte, err error) {
	if !v.known {
		return nil, nil // no client has followed it yet
	}
	old := v.page
	add := func(e api.Event) {
		if err == nil {
			var data []byte
			data, err = v.format.Encode(v.query, page, e)
			events = append(events, data)
		}
	}
	after := byName(page.Locks)
	for _, l := range old.Locks {
		if after[l.Name] == nil {
			add(api.Event{Type: api.EventGone, Name: l.Name})
		}
	}
	for i := range page.Locks {
		l := &page.Locks[i]
		if b := before[l.Name]; b == nil || !reflect.DeepEqual(b, l) {
			add(api.Event{Type: api.EventLock, Name: l.Name, Lock: l})
		}
	}
	if old.Matched != page.Matched || len(old.Locks) != len(page.Locks) {
		add(api.Event{Type: api.EventMatched, Matched: &page.Matched})
	}
	return events, err
}

// maxRing bounds the events that a view keeps, in bytes. The last one is kept whatever its size.
const maxRing = 512 << 10

// ring has the last events of a view, as the data that is sent.
type ring struct {
	events [][]byte
	bytes  int
	// count is the number of all events so far, those not kept included.
	count uint64
}

func (r *ring) add(event []byte) {
	r.events = append(r.events, event)
	r.bytes += len(event)
	r.count++
	for len(r.events) > 1 && r.bytes > maxRing {
		r.bytes -= len(r.events[0])
		r.events[0] = nil
		r.events = r.events[1:]
	}
}

// skip forgets all events, and one that no client gets.
func (r *ring) skip() { *r = ring{count: r.count + 1} }

// after returns the next events for who has the first n. It reports false if it has none of them
// any more, or never had n.
func (r *ring) after(n uint64) (events [][]byte, kept bool) {
	const maxTaken = 64 // how many events are taken from a ring at a time
	oldest := r.count - uint64(len(r.events))
	if n < oldest || n > r.count {
		return nil, false
	}
	events = r.events[n-oldest:]
	return append([][]byte(nil), events[:min(len(events), maxTaken)]...), true
}
