package reaper

import (
	"container/heap"
	"fmt"
	"strconv"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// huntWorld is an etcd with all that is around it, in virtual time: one
// goroutine, in a bubble of synctest, does what is next in the agenda.
type huntWorld struct {
	huntScript
	began    time.Time
	agenda   agenda
	tasks    int
	store    huntStore
	old      []huntStore // snapshots to restore
	up       bool
	space    bool
	lingers  []func() // requests that etcd took before it went down
	owners   []*huntOwner
	replicas []*huntReplica
	trace    []string
	violated string
	over     bool // nobody locks any more
	removed  int
	faults   int
	stats    *huntFigures
}

type huntFigures struct {
	histories, lifetimes, removals, faults, virtual, lost, drifted, doubtless int64
}

// agenda is what is to be done when, in order.
type agenda []task

type task struct {
	at time.Time
	n  int
	do func()
}

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at.Before(a[j].at) || a[i].at.Equal(a[j].at) && a[i].n < a[j].n
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(v any)   { *a = append(*a, v.(task)) }
func (a *agenda) Pop() any {
	old := *a
	v := old[len(old)-1]
	old[len(old)-1] = task{}
	*a = old[:len(old)-1]
	return v
}

func (w *huntWorld) in(d time.Duration, do func()) {
	w.tasks++
	heap.Push(&w.agenda, task{time.Now().Add(d), w.tasks, do})
}

// until lets time pass, and all happen that is to happen in it.
func (w *huntWorld) until(end time.Time) {
	for w.violated == "" && len(w.agenda) > 0 && w.agenda[0].at.Before(end) {
		t := heap.Pop(&w.agenda).(task)
		if d := time.Until(t.at); d > 0 {
			time.Sleep(d)
		}
		t.do()
	}
	if d := time.Until(end); d > 0 && w.violated == "" {
		time.Sleep(d)
	}
}

func (w *huntWorld) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%8.3f  ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *huntWorld) violate(format string, args ...any) {
	w.say("VIOLATION "+format, args...)
	if w.violated == "" {
		w.violated = fmt.Sprintf(format, args...)
	}
}

// huntClock is a wall clock: off, drifting, and now and then stepped.
type huntClock struct {
	w     *huntWorld
	off   time.Duration
	drift float64
}

var huntEpoch = time.Unix(1_800_000_000, 0)

func (c *huntClock) now() time.Time {
	t := time.Since(c.w.began)
	return huntEpoch.Add(t + c.off + time.Duration(float64(t)*c.drift))
}

// huntOwner is one that locks and renews. It keeps its promise: where etcd takes
// renewals, it renews before its own deadline.
type huntOwner struct {
	huntOwnerScript
	w       *huntWorld
	name    string
	clock   huntClock
	uuid    string
	n       int
	holding bool
	crashed bool
	// cut from etcd, which is its own fault until it has renewed again; stepped
	// is as long as its clock was not measured since it stepped.
	cut, fault, stepped bool
	deadline            time.Time
	gen                 int
}

func (o *huntOwner) stamp(t time.Time) string {
	if o.Whole {
		return strconv.FormatInt(t.Unix(), 10)
	}
	return lock.TimestampOf(t).String()
}

// reaches tells whether a put of the owner gets through.
func (o *huntOwner) reaches() bool { return o.w.up && o.w.space && !o.cut }

// send sends a put, which arrives a little later, and, where etcd goes down
// meanwhile, perhaps when it is up again.
func (o *huntOwner) send(do func(), failed func()) {
	if !o.reaches() {
		o.w.in(huntRetry, failed)
		return
	}
	o.w.in(o.Latency, func() {
		switch {
		case o.reaches():
			do()
		case !o.w.up && !o.cut && o.Linger:
			o.w.lingers = append(o.w.lingers, do)
			o.w.in(huntRetry, failed)
		default:
			o.w.in(huntRetry, failed)
		}
	})
}

// huntRetry is how soon an owner tries again.
const huntRetry = 100 * time.Millisecond

func (o *huntOwner) acquire() {
	gen := o.gen
	if o.crashed {
		return
	}
	now := o.clock.now()
	o.send(func() {
		if gen != o.gen {
			return
		}
		if len(o.w.store.keysOf(o.name)) > 0 || o.holding {
			o.w.in(time.Second, o.acquire)
			return
		}
		o.gen++
		o.n++
		o.uuid = fmt.Sprintf("%s-%d", o.name, o.n)
		o.holding, o.fault, o.stepped = true, false, false
		o.deadline = now.Add(o.TTL)
		rev := o.w.store.put(o.name, map[string]string{"uuid": o.uuid, "hostname": o.name,
			"locked_at": o.stamp(now), "auto_unlock_at": o.stamp(o.deadline)})
		o.w.stats.lifetimes++
		o.w.say("%s acquires, deadline +%v, revision %d", o.name, o.TTL, rev)
		o.w.wrote()
		o.later(o.gen)
	}, o.acquire)
}

func (o *huntOwner) later(gen int) {
	every := time.Duration(float64(o.TTL) * o.Every)
	if o.Whole { // what it writes is up to a second before what it means
		every = min(every, o.TTL-1500*time.Millisecond)
	}
	o.w.in(every, func() { o.renew(gen) })
}

func (o *huntOwner) renew(gen int) {
	if gen != o.gen || o.crashed || !o.holding {
		return
	}
	if o.cut {
		o.fault = true
	}
	now := o.clock.now()
	next := now.Add(o.TTL)
	o.send(func() {
		if gen != o.gen {
			return
		}
		o.put(now, next)
	}, func() { o.renew(gen) })
}

// put is the transaction of a renewal.
func (o *huntOwner) put(now, next time.Time) {
	kv := o.w.store.kvs[huntLayout.Key(o.name, "uuid")]
	if kv == nil || string(kv.Value) != o.uuid {
		o.w.say("%s finds its lock gone", o.name)
		o.w.stats.lost++
		o.holding = false
		o.gen++
		o.w.in(time.Second, o.acquire)
		return
	}
	fields := map[string]string{"auto_unlock_at": o.stamp(next)}
	if o.Alive {
		fields["alive_at"] = o.stamp(now)
		o.stepped = false
	}
	o.deadline, o.fault = next, false
	rev := o.w.store.put(o.name, fields)
	o.w.say("%s renews, deadline +%v, revision %d", o.name, next.Sub(o.clock.now()), rev)
	o.w.wrote()
	o.gen++
	if !o.crashed {
		o.later(o.gen)
	}
}

func (o *huntOwner) release() {
	if !o.holding || o.crashed || !o.w.up || o.cut {
		return
	}
	kv := o.w.store.kvs[huntLayout.Key(o.name, "uuid")]
	if kv != nil && string(kv.Value) == o.uuid {
		o.w.say("%s releases", o.name)
		o.w.store.del(o.w.store.keysOf(o.name))
		o.w.wrote()
	}
	o.holding = false
	o.gen++
	o.w.in(time.Second, o.acquire)
}

func (o *huntOwner) crash() {
	o.crashed, o.holding = true, false
	o.gen++
}

func (o *huntOwner) restart() {
	if o.crashed && !o.w.over {
		o.crashed, o.fault = false, false
		o.gen++
		o.acquire()
	}
}

// wrote is called after every write: the watches bring it.
func (w *huntWorld) wrote() {
	for _, r := range w.replicas {
		r.in(r.delay, r.deliver)
	}
}
