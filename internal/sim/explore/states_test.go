package explore

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"
)

// states are the hashes of those that were seen.
type states struct {
	seed maphash.Seed
	seen map[uint64]bool
}

func newStates() states { return states{maphash.MakeSeed(), make(map[uint64]bool)} }

// look judges S6, and looks whether the state was seen. All that may decide what happens next is part of it, as far as it
// can be asked for: of the daemons it is what they know, and the holds with their reasons. It reports whether a promise
// is broken.
func (w *world) look(seen states) (over bool) {
	var hash maphash.Hash
	hash.SetSeed(seen.seed)
	settled := true // no random backoff, and nothing in the hands of a worker
	w.mu.Lock()
	next := w.revision + 1
	w.mu.Unlock()
	for _, r := range w.replicas {
		// Without the mutex: the daemon reads its signals with its own.
		holding, overdue, status, v := r.reaper.Holding(), r.probe.Overdue(), r.probe.Status(), r.view()
		remaining := r.reaper.Verdict(v).Remaining
		allowance, _ := r.allowance(next, time.Now(), false) // of a write that arrives now
		w.mu.Lock()
		r.soon(overdue || len(holding) > 0, v, remaining)
		g := r.signals
		fmt.Fprintln(&hash, holding, overdue, status.OK, status.Up, status.Alarms, ago(status.Failed), ago(status.Alarmed), ago(status.Good))
		fmt.Fprintln(&hash, remaining, v.AutoUnlockAt(), v.AliveAt(), v.Token-r.revision, v.Revision-r.revision, v.Observation, allowance)
		fmt.Fprintln(&hash, g.ListedAt.IsZero(), g.Connected, g.Paused, ago(g.LastSign), ago(g.ListedAt), ago(g.Lost), ago(r.quiet), ago(r.cut), ago(r.free))
		fmt.Fprintln(&hash, r.broken, r.paused > 0, r.link.cut, r.link.killed, r.step.Load())
		settled = settled && v.Attempts == 0 && r.link.flying == 0 && remaining > -tick && len(r.link.waiting) == 0
		for _, ev := range r.queue {
			fmt.Fprintln(&hash, ev.Type, string(ev.Kv.Key), string(ev.Kv.Value), ev.Kv.ModRevision-r.revision)
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.holders {
		fmt.Fprintln(&hash, h.has, h.dead, h.next, h.late, h.offset)
	}
	for _, kvs := range append(slices.Clone(w.backups[max(0, len(w.backups)-4):]), w.kvs) {
		for _, f := range []string{"uuid", "auto_unlock_at", "alive_at"} {
			if kv := kvs[prefix+"a/"+f]; kv != nil {
				fmt.Fprint(&hash, string(kv.Value), kv.ModRevision-w.revision)
			}
		}
	}
	for _, m := range w.made {
		settled = settled && m.at <= w.tick
		if m.end != nil && m.at+m.ticks > w.tick {
			fmt.Fprintln(&hash, m.name, m.at+m.ticks, m.replica)
		}
		if m.once {
			fmt.Fprintln(&hash, m.name, m.replica)
		}
	}
	if h := w.holder(); h != nil {
		fmt.Fprintln(&hash, w.renewable(h.written), time.Since(h.written))
	}
	fmt.Fprintln(&hash, w.tick, w.stopped, w.alarm, w.pausedAt.IsZero())
	if settled && w.flying+len(w.kept) == 0 {
		key := hash.Sum64()
		w.known = seen.seen[key]
		seen.seen[key] = true
	}
	return w.broken != ""
}

// ago returns how long ago an instant was. What was long ago does not matter any more.
func ago(t time.Time) time.Duration { return min(time.Since(t), settle+tick) }
