package sim

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// truth is what etcd holds, as what it carried out makes it. It is kept by the judge
// alone.
type truth struct {
	locks map[string]*state
	// writes is when locks were written to.
	writes []time.Duration
	// candidates are the keys of the election, in the order of their creation.
	candidates []candidate
}

type candidate struct{ key, identity string }

// state is the keys directly below one name.
type state struct {
	name   string
	fields map[string]*mvccpb.KeyValue
	// write is the last write of uuid or auto_unlock_at, taken that of the uuid.
	write, taken sign
	// touched is when any key was last written or deleted.
	touched time.Duration
	// restored is when a restore last changed the lock, zero for never.
	restored time.Duration
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
	// apart is the holder's clock minus true time then.
	apart time.Duration
}

func newTruth() *truth { return &truth{locks: make(map[string]*state)} }

func (t *truth) clone() *truth {
	c := newTruth()
	c.candidates, c.writes = slices.Clone(t.candidates), slices.Clip(t.writes)
	for name, s := range t.locks {
		own := *s
		own.fields = maps.Clone(s.fields)
		c.locks[name] = &own
	}
	return c
}

// split returns the name and the field of a key below the prefix.
func split(key []byte) (name, field string, ok bool) {
	rest, below := strings.CutPrefix(string(key), prefix)
	i := strings.LastIndexByte(rest, '/')
	if !below || i <= 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

func (s *state) value(field string) string {
	if kv := s.fields[field]; kv != nil {
		return string(kv.Value)
	}
	return ""
}

// newest returns the newest revision of a key.
func (s *state) newest() (newest int64) {
	for _, kv := range s.fields {
		newest = max(newest, kv.ModRevision)
	}
	return newest
}

// own reports whether this acquisition wrote a field.
func (s *state) own(field string) bool {
	kv, uuid := s.fields[field], s.fields["uuid"]
	return kv != nil && uuid != nil && kv.ModRevision >= uuid.CreateRevision
}

// timestamp reads a plausible time in decimal seconds.
func timestamp(text string) (t time.Time, ok bool) {
	whole, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || s < 1e9 || s >= 9e9 {
		return t, false
	}
	ns, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	return time.Unix(s, ns), err == nil
}

// deadline returns the lock's auto_unlock_at.
func (s *state) deadline() (time.Time, bool) {
	if !s.own("auto_unlock_at") {
		return time.Time{}, false
	}
	return timestamp(s.value("auto_unlock_at"))
}

// patience is rule 5's.
func (s *state) patience() time.Duration {
	const most = 5 * time.Minute
	auto, _ := s.deadline()
	from := ""
	if alive := s.fields["alive_at"]; s.own("alive_at") && alive.ModRevision == s.fields["auto_unlock_at"].ModRevision {
		from = string(alive.Value)
	} else if s.own("locked_at") && s.fields["auto_unlock_at"].ModRevision == s.fields["uuid"].CreateRevision {
		from = s.value("locked_at")
	}
	if at, ok := timestamp(from); ok {
		return min(most, max(0, auto.Sub(at)))
	}
	return most
}

// put applies a write of the transaction that made rev.
func (t *truth) put(kv *mvccpb.KeyValue, now time.Duration) *state {
	name, field, ok := split(kv.Key)
	if !ok {
		return nil
	}
	s := t.locks[name]
	if s == nil {
		s = &state{name: name, fields: make(map[string]*mvccpb.KeyValue)}
		t.locks[name] = s
	}
	s.fields[field] = kv
	s.touched, t.writes = now, append(t.writes, now)
	return s
}

func (t *truth) delete(key []byte, now time.Duration) {
	name, field, _ := split(key)
	if s := t.locks[name]; s != nil {
		delete(s.fields, field)
		t.writes = append(t.writes, now)
		if s.touched = now; len(s.fields) == 0 {
			delete(t.locks, name)
		}
	}
}
