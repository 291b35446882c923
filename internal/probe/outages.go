package probe

import (
	"sort"
	"time"
)

// outages are the times in which etcd could not accept a renewal, in their order.
type outages []outage

type outage struct {
	end    time.Time
	length time.Duration
	// before is the sum of the lengths of all earlier outages.
	before time.Duration
}

// maxOutages limits the memory. Beyond it the two oldest are merged, which only delays
// removals.
const maxOutages = 1_000

func (o *outages) add(end time.Time, length time.Duration) {
	next := outage{end: end, length: length}
	if n := len(*o); n > 0 {
		next.before = (*o)[n-1].before + (*o)[n-1].length
	}
	*o = append(*o, next)
	if len(*o) > maxOutages {
		(*o)[1].length += (*o)[0].length
		(*o)[1].before = (*o)[0].before
		*o = (*o)[1:]
	}
}

// end returns when the newest outage ended, or the zero time if there was none.
func (o outages) end() time.Time {
	if len(o) == 0 {
		return time.Time{}
	}
	return o[len(o)-1].end
}

// since returns the sum of the outages after a time. If the time is within an outage, only the
// rest of that outage counts.
func (o outages) since(seen time.Time) time.Duration {
	n := len(o)
	if n == 0 || !o[n-1].end.After(seen) {
		return 0
	}
	first := sort.Search(n, func(i int) bool { return o[i].end.After(seen) })
	all := o[n-1].before + o[n-1].length
	return min(o[first].length, o[first].end.Sub(seen)) + all - o[first].before - o[first].length
}
