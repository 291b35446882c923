package explore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// window is the number of ticks in which moves are made. tail is how many follow, and four more for each move.
const window, tail = 9, 11

// move is what happens at a tick, for some ticks where it lasts.
type move struct {
	kind
	at, ticks int
	replica   int
}

type kind struct {
	name  string
	ticks []int
	// replica: it happens to one replica. once: it happens once in a history.
	replica, once bool
	begin         func(w *world, m move)
	end           func(w *world, m move)
}

func (m move) String() string {
	return fmt.Sprintf("%s@%d", strings.TrimSpace(fmt.Sprint(m.name, " ", m.ticks)), m.at)
}

// kinds are all the moves there are.
func kinds() []kind {
	return []kind{
		{name: "dies", once: true, begin: func(w *world, _ move) { w.die() }},
		{name: "releases", once: true, begin: func(w *world, _ move) {
			if h := w.holder(); h != nil && h.has && !h.dead && !w.stopped {
				h.has, h.next = false, 1000
				w.tell("holder %s releases the lock", h.uuid)
				w.remove(w.within(prefix, prefix+"~"))
			}
		}},
		{name: "etcd stops", ticks: []int{1, 3}, begin: func(w *world, _ move) {
			w.tell("etcd stops")
			w.stopped = true
			w.block()
		}, end: func(w *world, _ move) {
			w.tell("etcd starts")
			w.serve()
		}},
		{name: "etcd hangs", ticks: []int{1, 3}, begin: func(w *world, _ move) {
			w.tell("etcd hangs")
			w.stopped, w.hangs = true, true
			w.block()
		}, end: func(w *world, _ move) {
			w.tell("etcd continues")
			w.serve()
		}},
		{name: "alarm", ticks: []int{1, 3}, begin: func(w *world, _ move) {
			w.tell("etcd raises the alarm NOSPACE")
			w.alarm = true
			w.block()
		}, end: func(w *world, _ move) {
			w.tell("the alarm is disarmed")
			w.alarm = false
			w.block()
			for _, r := range w.replicas {
				if now := time.Now(); now.Sub(r.probe.Status().Alarmed) < tick { // it has seen the alarm
					r.quiet = now
				}
			}
		}},
		{name: "holder stalls", ticks: []int{6}, begin: func(w *world, m move) {
			if h := w.holder(); h != nil && h.has && !h.dead {
				w.tell("holder %s stalls", h.uuid)
				h.next = max(h.next, w.tick+m.ticks)
			}
		}},
		{name: "clock is set", once: true, begin: func(w *world, _ move) {
			if h := w.holder(); h != nil && h.has && !h.bare {
				w.tell("the clock of holder %s is set 4 ticks back", h.uuid)
				h.offset -= 4 * tick
			}
		}},
		{name: "watch lags", ticks: []int{1, 3, 6}, replica: true, begin: func(w *world, m move) {
			w.tell("the watch of replica %d lags by %d ticks", m.replica, m.ticks)
			w.replicas[m.replica].cut = time.Now().Add(time.Duration(m.ticks) * tick)
		}},
		{name: "unreachable", ticks: []int{1, 3}, replica: true, begin: func(w *world, m move) {
			w.tell("replica %d does not reach etcd", m.replica)
			w.replicas[m.replica].link.cut = true
		}, end: func(w *world, m move) {
			w.tell("replica %d reaches etcd again", m.replica)
			l := w.replicas[m.replica].link
			l.cut = false
			l.carry()
		}},
		{name: "restarts", ticks: []int{1}, replica: true, begin: func(w *world, m move) {
			w.tell("replica %d is killed", m.replica)
			r := w.replicas[m.replica]
			r.link.killed = true
			r.cancel()
		}, end: func(w *world, m move) {
			w.tell("replica %d is started", m.replica)
			step := w.replicas[m.replica].step.Load()
			w.replicas[m.replica] = w.start(m.replica)
			w.replicas[m.replica].step.Store(step)
		}},
		{name: "restored", ticks: []int{2, 4}, begin: func(w *world, m move) { w.restore(m.ticks) }},
		{name: "steps ahead", replica: true, once: true, begin: func(w *world, m move) {
			w.tell("the clock of replica %d steps 4 ticks ahead", m.replica)
			w.replicas[m.replica].step.Add(int64(4 * tick))
		}},
		{name: "steps back", replica: true, once: true, begin: func(w *world, m move) {
			w.tell("the clock of replica %d steps 4 ticks back", m.replica)
			w.replicas[m.replica].step.Add(-int64(4 * tick))
		}},
		{name: "late renewal", ticks: []int{2, 4}, begin: func(w *world, m move) {
			if h := w.holder(); h != nil {
				h.late = m.ticks
			}
		}},
		{name: "late removal", ticks: []int{2}, replica: true, begin: func(w *world, m move) {
			w.replicas[m.replica].link.late = time.Duration(m.ticks)*tick - tick/4
		}},
		{name: "stuck removal", ticks: []int{2}, replica: true, begin: func(w *world, m move) {
			w.replicas[m.replica].link.stuck = time.Duration(m.ticks)*tick - tick/4
		}},
		{name: "paused", once: true, begin: func(w *world, _ move) {
			if w.stopped || w.alarm {
				return
			}
			w.tell("a user pauses all removals")
			w.commit(map[string]string{pausePrefix + "1": "all"})
			w.pausedAt = time.Now()
		}},
	}
}

// move makes the moves of a tick.
func (w *world) move() {
	w.backups = append(w.backups, maps.Clone(w.kvs))
	if w.dies > 0 && w.dies == w.tick {
		w.die()
	}
	for _, m := range w.made {
		if m.end != nil && m.at+m.ticks == w.tick {
			m.end(w, m)
		}
	}
	for _, m := range w.made {
		if m.at == w.tick {
			m.begin(w, m)
		}
	}
}

func (w *world) die() {
	if h := w.holder(); h != nil && h.has {
		h.dead = true
		w.tell("holder %s dies", h.uuid)
	}
}

// serve ends that etcd is stopped. The renewals that were sent meanwhile are executed a little later.
func (w *world) serve() {
	w.stopped, w.hangs = false, false
	w.block()
	kept := w.kept
	w.kept = nil
	time.AfterFunc(tick/5, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, f := range kept {
			f()
		}
	})
	for _, l := range w.links {
		l.carry()
	}
}

// disarm ends what a move was to do within its tick.
func (w *world) disarm() {
	for _, h := range w.holders {
		h.late = 0
	}
	for _, r := range w.replicas {
		r.link.stuck, r.link.late = 0, 0
	}
}

// block notes since when renewals are executed, or not.
func (w *world) block() {
	n := len(w.blocked)
	blocked, was := w.stopped || w.alarm, n > 0 && w.blocked[n-1][1].IsZero()
	switch {
	case blocked && !was:
		w.blocked = append(w.blocked, [2]time.Time{time.Now()})
	case !blocked && was:
		w.blocked[n-1][1] = time.Now()
	}
}

// moves returns the moves that may be made in a scene, in their order: those of some kinds, or where none is given all.
func (s scene) moves(only []string) (all []move) {
	for at := max(s.from, 1); at <= cmp.Or(s.to, window); at++ {
		for _, k := range kinds() {
			if len(only) > 0 && !slices.Contains(only, k.name) {
				continue
			}
			for replica := range s.replicas {
				if replica > 0 && !k.replica {
					continue
				}
				for _, ticks := range append(k.ticks, 0)[:max(len(k.ticks), 1)] {
					all = append(all, move{kind: k, at: at, ticks: ticks, replica: replica})
				}
			}
		}
	}
	return all
}
