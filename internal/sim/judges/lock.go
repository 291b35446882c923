// Package judges holds what a daemon did against the promises S1 to S8. The simulator and
// the hunt use it, each with the facts that it has: revisions of etcd, log lines, and what
// the holders did.
//
// Guaranteed: facts that convict break a promise as it is specified. The rules are computed
// from the protocol, and not by the packages of the daemon.
//
// Not guaranteed: anything about facts that are wrong. Who gives a time that is known within
// bounds gives the bound with which there is no violation, and the zero value for what is not
// known: it convicts nobody.
package judges

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Violation is a broken promise.
type Violation struct{ Promise, Text string }

// Span is a time from an instant to another.
type Span struct{ From, To time.Time }

// Cut returns the intersection with o. If there is none, its end is before its start.
func (s Span) Cut(o Span) Span {
	if o.From.After(s.From) {
		s.From = o.From
	}
	if o.To.Before(s.To) {
		s.To = o.To
	}
	return s
}

// Overlap returns the duration of the intersection with o.
func (s Span) Overlap(o Span) time.Duration {
	both := s.Cut(o)
	return max(0, both.To.Sub(both.From))
}

// Lock is the keys directly below one name.
type Lock struct {
	Name   string
	Fields map[string]*mvccpb.KeyValue
}

// NewLock returns a lock without keys.
func NewLock(name string) *Lock { return &Lock{name, make(map[string]*mvccpb.KeyValue)} }

// Clone returns a copy.
func (l *Lock) Clone() *Lock { return &Lock{l.Name, maps.Clone(l.Fields)} }

// Split returns the name and the field of a key below the prefix.
func Split(prefix string, key []byte) (name, field string, ok bool) {
	rest, below := strings.CutPrefix(string(key), prefix)
	i := strings.LastIndexByte(rest, '/')
	if !below || i <= 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// Held reports whether the lock has a uuid.
func (l *Lock) Held() bool { return l.Fields["uuid"] != nil }

// Value returns a field, "" for none.
func (l *Lock) Value(field string) string { return string(l.Fields[field].GetValue()) }

// Newest returns the newest revision of a key.
func (l *Lock) Newest() (newest int64) {
	for _, kv := range l.Fields {
		newest = max(newest, kv.ModRevision)
	}
	return newest
}

// own reports whether this acquisition wrote a field.
func (l *Lock) own(field string) bool {
	kv, uuid := l.Fields[field], l.Fields["uuid"]
	return kv != nil && uuid != nil && kv.ModRevision >= uuid.CreateRevision
}

// Timestamp reads a plausible time in decimal seconds.
func Timestamp(text string) (t time.Time, ok bool) {
	whole, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || s < 1e9 || s >= 9e9 {
		return t, false
	}
	ns, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	return time.Unix(s, ns), err == nil
}

// Deadline returns auto_unlock_at. It reports whether this acquisition wrote a readable one, and no field has a lease.
func (l *Lock) Deadline() (time.Time, bool) {
	leased := false
	for _, kv := range l.Fields {
		leased = leased || kv.Lease != 0
	}
	if leased || !l.own("auto_unlock_at") {
		return time.Time{}, false
	}
	return Timestamp(l.Value("auto_unlock_at"))
}

// Patience returns the patience of rule 5 in docs/safety.md.
func (l *Lock) Patience() time.Duration {
	const most = 5 * time.Minute
	auto, _ := l.Deadline()
	from := ""
	if alive := l.Fields["alive_at"]; l.own("alive_at") && alive.ModRevision == l.Fields["auto_unlock_at"].ModRevision {
		from = string(alive.Value)
	} else if l.own("locked_at") && l.Fields["auto_unlock_at"].ModRevision == l.Fields["uuid"].CreateRevision {
		from = l.Value("locked_at")
	}
	if at, ok := Timestamp(from); ok {
		return min(most, max(0, auto.Sub(at)))
	}
	return most
}
