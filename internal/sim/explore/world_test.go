package explore

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// The configuration, in ticks. A holder renews every second tick.
const (
	tick      = time.Second
	ttl       = 5 * tick
	interval  = 2
	grace     = 2 * tick
	tolerance = 2 * tick
	settle    = 3 * tick
	freshness = 4 * tick
	standby   = 2 * tick
	timeout   = 2 * tick
)

// scene is what a world begins with.
type scene struct {
	name     string
	replicas int
	// offset is that of the first holder's clock, bare that it renews without alive_at, dies the tick at which it dies; 0
	// for never.
	offset time.Duration
	bare   bool
	dies   int
	// from and to are the ticks of the moves, 0 for the whole window. more is how many more moves are made.
	from, to, more int
}

// world is one history: etcd, holders and daemons, tick by tick.
type world struct {
	scene
	out without
	server
	running sync.WaitGroup

	began    time.Time
	tick     int
	replicas []*replica
	links    []*link
	holders  []*holder
	// blocked are the times in which no renewal is executed. The end of the last one may be zero.
	blocked  [][2]time.Time
	backups  []map[string]*mvccpb.KeyValue
	pausedAt time.Time // when the pause was answered
	removal            // that is being executed

	made   []move
	flying int  // renewals on their way
	hangs  bool // etcd is stopped, and executes later what is sent meanwhile
	kept   []func()
	known  bool // the state was seen before
	story  []string
	broken string // the promise that was broken first
}

// holder takes the lock when it is free, and renews it as long as it lives.
type holder struct {
	uuid   string
	offset time.Duration
	bare   bool
	// has is set while it believes that it has the lock, written when it sent its last write that was answered.
	has, dead bool
	written   time.Time
	next      int // tick of the next renewal
	late      int // for how many ticks that is on its way
}

// epoch is the beginning of the world: that of a bubble is no plausible timestamp.

const epoch = 40 * 365 * 24 * time.Hour

func wall(ahead time.Duration) time.Time { return time.Now().Add(epoch + ahead) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// tell adds to the story, which ends when a promise is broken.
func (w *world) tell(format string, args ...any) {
	if w.broken != "" {
		return
	}
	at := time.Since(w.began).Round(tick / 10).Seconds()
	w.story = append(w.story, fmt.Sprintf("t=%g: ", at)+fmt.Sprintf(format, args...))
}

func (w *world) breaks(promise, format string, args ...any) {
	if w.broken == "" {
		w.tell(promise+" is broken: "+format, args...)
		w.broken = promise
	}
}

// play plays a history until a promise is broken, its state was seen, or the end. It runs in a bubble of its own, so
// that all of them begin at the same time.
func play(s scene, out without, made []move, end int, seen states) *world {
	w := &world{scene: s, out: out, began: time.Now(), made: made}
	w.kvs, w.revision = make(map[string]*mvccpb.KeyValue), 1
	w.changed, w.removing = w.feed, w.executed
	w.holders = []*holder{{uuid: "A", offset: s.offset, bare: s.bare, next: 1}, {uuid: "B", offset: -5 * tick, next: 1}}
	time.Sleep(313 * time.Millisecond) // no timer of a daemon fires in the same instant as a move
	for n := range s.replicas {
		w.replicas = append(w.replicas, w.start(n))
	}
	for over := false; w.tick < end && !over && !w.known; w.tick++ {
		w.until(0, w.move)
		w.until(50, w.progress)
		w.until(100, w.act)
		w.until(150, w.progress)
		w.until(550, w.progress)
		w.until(950, w.disarm)
		over = w.look(seen)
	}
	if !w.known {
		w.stays()
	}
	w.stop()
	return w
}

// until waits for an instant of the tick, and calls f.
func (w *world) until(ms time.Duration, f func()) {
	time.Sleep(time.Until(w.began.Add(time.Duration(w.tick)*tick + ms*time.Millisecond)))
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) stop() {
	w.mu.Lock()
	for _, r := range w.replicas {
		r.cancel()
	}
	for _, l := range w.links {
		l.killed = true
	}
	w.mu.Unlock()
	w.running.Wait()
}

func (w *world) progress() {
	for _, r := range w.replicas {
		if !r.link.killed {
			r.progress(context.Background())
		}
	}
}

// feed gives the watches the events of a revision.
func (w *world) feed(events []*mvccpb.Event) {
	for _, r := range w.replicas {
		r.queue = append(r.queue, events...)
	}
}

func (w *world) uuid() string {
	if kv := w.kvs[prefix+"a/uuid"]; kv != nil {
		return string(kv.Value)
	}
	return ""
}

// holder returns who took the lock that is in etcd.
func (w *world) holder() *holder {
	for _, h := range w.holders {
		if h.uuid == w.uuid() {
			return h
		}
	}
	return nil
}

// act is what the holders do at a tick. A renewal that etcd does not execute is tried again at the next.
func (w *world) act() {
	for _, h := range w.holders {
		switch blocked := w.stopped || w.alarm; {
		case h.dead, w.tick < h.next:
		case w.hangs && h.has:
			w.renews(h, 0)
		case blocked && h.has:
			w.tell("holder %s cannot renew", h.uuid)
		case blocked:
		case h.has:
			w.renews(h, h.late)
		case w.uuid() == "":
			w.write(h, time.Now(), map[string]string{"uuid": h.uuid, "locked_at": h.stamp(0), "auto_unlock_at": h.stamp(ttl)})
			h.has, h.next = true, w.tick+interval
			w.tell("holder %s takes the lock", h.uuid)
		}
	}
}

func (h *holder) stamp(ahead time.Duration) string {
	return protocol.TimestampOf(wall(h.offset + ahead)).String()
}

func (w *world) write(h *holder, sent time.Time, fields map[string]string) {
	all := make(map[string]string)
	for f, v := range fields {
		all[prefix+"a/"+f] = v
	}
	w.commit(all)
	h.written = later(h.written, sent)
}

func (w *world) renews(h *holder, late int) {
	sent, fields := time.Now(), map[string]string{"auto_unlock_at": h.stamp(ttl)}
	if !h.bare {
		fields["alive_at"] = h.stamp(0)
	}
	h.next = w.tick + interval
	if w.hangs {
		w.tell("holder %s sends a renewal, which etcd does not execute yet", h.uuid)
		w.kept = append(w.kept, func() { w.renewal(h, sent, fields) })
		return
	}
	if late == 0 {
		w.renewal(h, sent, fields)
		return
	}
	w.tell("holder %s sends a renewal, which is %d ticks on its way", h.uuid, late)
	w.flying++
	time.AfterFunc(time.Duration(late)*tick-tick/20, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.flying--
		w.renewal(h, sent, fields)
	})
}

// renewal is the arrival of a renewal.
func (w *world) renewal(h *holder, sent time.Time, fields map[string]string) {
	switch {
	case w.stopped, w.alarm:
		w.tell("the renewal of holder %s is lost", h.uuid)
	case w.uuid() != h.uuid:
		h.has, h.next = false, 1000
		w.tell("holder %s is refused its renewal", h.uuid)
	case h.bare:
		w.write(h, sent, fields)
		w.tell("holder %s renews, without a stamp", h.uuid)
	default:
		w.write(h, sent, fields)
		w.tell("holder %s renews", h.uuid)
	}
}

// restore restores etcd from a backup.
func (w *world) restore(ago int) {
	w.tell("etcd is restored to what it was %d ticks before", ago)
	w.kvs = maps.Clone(w.backups[max(0, w.tick-ago)])
	if len(w.within(pausePrefix, pausePrefix+"~")) == 0 {
		w.pausedAt = time.Time{} // it is lost with what was after the backup
	}
	for _, r := range w.replicas {
		r.broken, r.quiet, r.cut = true, time.Now(), time.Time{}
	}
}
