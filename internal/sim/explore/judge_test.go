package explore

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// removal is a removal on its way.
type removal struct {
	by      int
	verdict verdict.Verdict
}

// sends judges a removal when it departs (S3).
func (r *replica) sends() (executes func()) {
	now, sent := time.Now(), removal{r.n, r.said}
	r.tell("replica %d sends the removal", r.n)
	if silent := now.Sub(r.signals.LastSign); silent > freshness+tick/2 {
		r.breaks("S3", "the watch has shown nothing for %s", silent)
	}
	if r.link.held() {
		return func() { r.world.removal = sent } // it cannot notice what happens there
	}
	if had := now.Sub(later(r.quiet, r.signals.ListedAt)); had > tick/2 && had < settle { // it takes time to notice the cause
		r.breaks("S3", "its holder had %s to renew, instead of %s", had, settle)
	}
	if n := len(r.blocked); n > 0 && r.blocked[n-1][1].IsZero() {
		if long := now.Sub(r.blocked[n-1][0]); long > grace+tick || r.alarm && long > tick/2 {
			r.breaks("S3", "nobody could renew for %s", long)
		}
	}
	return func() { r.world.removal = sent }
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// executed judges a removal in the instant in which etcd executes it (S1, S2, S3).
func (w *world) executed(keys []string) {
	h, newest := w.holder(), int64(0)
	for _, k := range keys {
		newest = max(newest, w.kvs[k].ModRevision)
	}
	w.tell("the lock of holder %s is removed", h.uuid)
	if newest > w.verdict.Revision {
		w.breaks("S1", "it was written after the verdict")
	}
	if had := w.renewable(h.written); had < ttl {
		w.breaks(w.blames(h), "its holder could renew for %s since its last write, instead of %s", had, ttl)
	}
	if !w.pausedAt.IsZero() {
		w.breaks("S3", "removals are paused")
	}
}

// blames returns the promise that is broken where a holder could renew for too short a time.
func (w *world) blames(h *holder) string {
	if w.renewable(h.written) < time.Since(h.written) {
		return "S3"
	}
	return "S2"
}

// renewable returns for how long renewals were executed since an instant.
func (w *world) renewable(since time.Time) time.Duration {
	now := time.Now()
	sum := now.Sub(since)
	for _, b := range w.blocked {
		to := b[1]
		if to.IsZero() {
			to = now
		}
		sum -= max(0, to.Sub(later(b[0], since)))
	}
	return sum
}

// soon judges S6: what is due, with nothing that keeps the daemon from removing it, is gone within a tick.
func (r *replica) soon(held bool, v table.View, remaining time.Duration) {
	now := time.Now()
	if held || r.link.killed || r.link.held() || r.link.flying > 0 || now.Before(r.cut) {
		r.free = now
	}
	kv := r.kvs[prefix+"a/uuid"]
	if kv != nil && kv.CreateRevision == v.Token && v.Attempts == 0 && now.Sub(r.free) > 2*tick && remaining < -tick {
		r.breaks("S6", "replica %d could have removed the lock for %s", r.n, -remaining)
	}
}

// stays judges S6 at the end: no lock of a dead holder stays.
func (w *world) stays() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.holder(); h != nil && (h.dead || !h.has) && w.pausedAt.IsZero() && !h.bare {
		w.breaks("S6", "the lock of holder %s is still there", h.uuid)
	}
}
