package live

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

// skip forgets all events, and one that nobody gets.
func (r *ring) skip() { *r = ring{count: r.count + 1} }

// maxTaken is how many events are taken from a ring at a time.
const maxTaken = 64

// after returns the next events for who has the first n. It reports false if it has none of them
// any more, or never had n.
func (r *ring) after(n uint64) (events [][]byte, kept bool) {
	oldest := r.count - uint64(len(r.events))
	if n < oldest || n > r.count {
		return nil, false
	}
	events = r.events[n-oldest:]
	return append([][]byte(nil), events[:min(len(events), maxTaken)]...), true
}
