package sim

import (
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// truth is what etcd holds, as what it carried out makes it. It is kept by the judge
// alone.
type truth struct {
	locks map[string]*state
	// writes is when locks were written to, and at when each revision did.
	writes     []time.Duration
	at         map[int64]time.Duration
	candidates []judges.Candidate
}

// state is a lock.
type state struct {
	*judges.Lock
	// write is the last write of uuid or auto_unlock_at, taken that of the uuid.
	write, taken sign
	// holder is the uuid of the last one.
	holder string
	// touched is when any key was last written or deleted.
	touched time.Duration
	// restored is when a restore last changed the lock, zero for never, and back when the deadline was written that it took
	// back, of the same holder.
	restored, back time.Duration
	// slowest is by how much the holder's clock seemed slow at most by a stamp since the acquisition, never for none;
	// moved reports whether it has written another locked_at since, or a restore has brought it back.
	slowest time.Duration
	moved   bool
}

// token is that of the holder, 0 for none.
func (s *state) token() int64 {
	if uuid := s.Fields["uuid"]; uuid != nil {
		return uuid.CreateRevision
	}
	return 0
}

// sign is a sign of life of a holder.
type sign struct {
	at time.Duration
	// made is when its holder sent it first.
	made    time.Duration
	stamped bool
	renewal bool
	// passes is when the holder's own clock passes the deadline, as it was when the
	// deadline was made.
	passes time.Duration
	// apart is the holder's clock minus true time then, and drift its drift.
	apart time.Duration
	drift int
	// again is set if its holder had made the same deadline before.
	again bool
}

// seems is by how much the holder's clock seems slow by a stamp: the time that it was on its way is a part of it.
func (s sign) seems() time.Duration { return s.at - s.made - s.apart }

// unset returns when the holder's clock would pass the deadline at the earliest, if it had not been set since some instant
// since the acquisition.
func (s *state) unset(steps []step) time.Duration {
	earliest, since := s.write.passes, time.Duration(0)
	for _, step := range slices.Backward(steps) {
		if s.taken.made < step.At && step.At <= s.write.made {
			since += step.By
			earliest = min(earliest, s.write.without(since))
		}
	}
	return earliest
}

// without returns when the holder's clock would pass the deadline if it had not been set by a time.
func (s sign) without(step time.Duration) time.Duration {
	return s.passes + step - step/1_000_000*time.Duration(s.drift)
}

func newTruth() *truth {
	return &truth{locks: make(map[string]*state), at: make(map[int64]time.Duration)}
}

func (t *truth) clone() *truth {
	c := newTruth()
	c.candidates, c.writes, c.at = slices.Clone(t.candidates), slices.Clip(t.writes), maps.Clone(t.at)
	for name, s := range t.locks {
		own := *s
		own.Lock = s.Clone()
		c.locks[name] = &own
	}
	return c
}

func split(key []byte) (name, field string, ok bool) { return judges.Split(prefix, key) }

// put applies a write of the transaction that made rev.
func (t *truth) put(kv *mvccpb.KeyValue, now time.Duration) *state {
	name, field, ok := split(kv.Key)
	if !ok || field == native {
		return nil
	}
	s := t.locks[name]
	if s == nil {
		s = &state{Lock: judges.NewLock(name)}
		t.locks[name] = s
	}
	s.Fields[field] = kv
	s.touched, t.writes, t.at[kv.ModRevision] = now, append(t.writes, now), now
	return s
}

// shows reports whether a listing shows what was written at a time: not a deletion, nor what was deleted or written over.
func (t *truth) shows(at time.Duration) bool {
	for _, s := range t.locks {
		for _, kv := range s.Fields {
			if t.at[kv.ModRevision] == at {
				return true
			}
		}
	}
	return false
}

func (t *truth) delete(key []byte, now time.Duration) {
	name, field, _ := split(key)
	if s := t.locks[name]; s != nil && field != native {
		delete(s.Fields, field)
		t.writes = append(t.writes, now)
		if s.touched = now; len(s.Fields) == 0 {
			delete(t.locks, name)
		}
	}
}
