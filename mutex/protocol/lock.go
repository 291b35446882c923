// Package protocol is the lock model of protocol 1: which keys belong to a lock, what
// their values mean, and which state a lock is in.
//
// Everything here is a pure function of values and of the time that is passed in. The package
// guarantees that no key and no value, however hostile, makes it panic, and that only a bounded
// part of each value is kept (names are kept whole). It does not guarantee that the contents of a
// lock are true: names, hosts and times are claims of the client that wrote them.
//
// The protocol is described in docs/protocol.md.
package protocol

import (
	"slices"
	"unique"
)

// maxLabelLen is the number of bytes kept of a short text: the maximum length of a DNS name.
const maxLabelLen = 253

// largeValue is the minimum size in bytes of a value that makes its lock Large.
const largeValue = 16 << 10

// Lock is what the daemon keeps of one lock: everything that verdicts and metrics
// depend on, but no big values. It is built by Put and Delete in the order of
// revisions, or by a Builder. A copy is independent of the original.
type Lock struct {
	// Name is the part of the keys between the prefix and the field. For a key
	// that belongs to no lock it begins with a slash (see Layout.Split).
	Name string
	// Token is the create_revision of the uuid key, the fencing token by which a
	// resource can refuse earlier holders; 0 if there is no uuid.
	Token int64
	// Revision is the newest revision known at which a key of the lock was written or deleted.
	Revision int64
	// Written is the newest revision at which uuid or auto_unlock_at was written: by the holder, as a
	// sign of life.
	Written int64
	// Keys is the number of keys of the lock, those of nested names excluded.
	Keys int32

	// have is the set of known fields that exist. Subsets of it are fresh, written
	// by the present holder; last, written at Revision; bad, with a value that
	// cannot be read; and leased, with a lease.
	have, fresh, last, bad, leased fieldSet
	flags                          flags

	uuid            [16]byte // zero where it is in rare
	hostname, owner interned
	lockedAt        Timestamp
	alertAt         Timestamp
	autoUnlockAt    Timestamp
	aliveAt         Timestamp
	// rare is nil for a lock that has none of it. It is replaced, never changed.
	rare *rare
}

// rare is what few locks have.
type rare struct {
	// uuidText is the value of uuid if it has not the canonical form; else "".
	uuidText string
	// autoText is the value of auto_unlock_at if it differs from that of Timestamp.String; else "".
	autoText string
	texts    [len(rareTexts)]interned
	// faults is nil unless values cannot be read: then it has the beginning of each, in the order of faulty.
	// It is replaced, never changed.
	faults *[len(faulty)]string
}

func (l *Lock) rarely() rare {
	if l.rare == nil {
		return rare{}
	}
	return *l.rare
}

func (l *Lock) setRare(r rare) {
	if r == (rare{}) {
		l.rare = nil
		return
	}
	kept := r // here, so that nothing is allocated for most locks
	l.rare = &kept
}

// flags are one bit each, since another byte would make every lock 8 bytes larger.
type flags uint8

const (
	paired  flags = 1 << iota // alive_at and auto_unlock_at were last written together
	renewed                   // auto_unlock_at was written after the acquisition
	large                     // see Lock.Large
)

func (f flags) has(one flags) bool { return f&one != 0 }

func (f *flags) set(one flags, yes bool) {
	if *f &^= one; yes {
		*f |= one
	}
}

// interned is a string that shares its memory with all equal ones. The zero value
// is the empty string.
type interned struct{ h unique.Handle[string] }

func intern(v []byte) interned { return interned{unique.Make(Clip(v, maxLabelLen))} }

func (i interned) String() string {
	if i == (interned{}) {
		return ""
	}
	return i.h.Value()
}

// UUID returns the value of the uuid key, or "" if there is none or it is longer than maxUUIDLen.
func (l *Lock) UUID() string {
	if l.Token == 0 || l.bad.has(FieldUUID) {
		return ""
	}
	if l.rarely().uuidText != "" {
		return l.rare.uuidText
	}
	return uuidText(l.uuid)
}

// Text returns a field that is a short text, clipped to the length of a DNS name: the hostname, the
// owner (the service name of the holder), the purpose, or the status (how far the holder's work is).
func (l *Lock) Text(f Field) string {
	if !l.fresh.has(f) {
		return ""
	}
	switch f {
	case FieldHostname:
		return l.hostname.String()
	case FieldOwner:
		return l.owner.String()
	}
	if i := slices.Index(rareTexts[:], f); i >= 0 {
		return l.rarely().texts[i].String()
	}
	return ""
}

// Hostname returns the host of the holder.
func (l *Lock) Hostname() string { return l.Text(FieldHostname) }

// Owner returns the service name of the holder.
func (l *Lock) Owner() string { return l.Text(FieldOwner) }

// LockedAt returns the time of the acquisition by the holder's clock.
func (l *Lock) LockedAt() Timestamp { return l.timestamp(FieldLockedAt, l.lockedAt) }

// AlertAt returns the time from which the lock is overdue.
func (l *Lock) AlertAt() Timestamp { return l.timestamp(FieldAlertAt, l.alertAt) }

// AutoUnlockAt returns the time from which the lock may be removed.
func (l *Lock) AutoUnlockAt() Timestamp { return l.timestamp(FieldAutoUnlockAt, l.autoUnlockAt) }

// AliveAt returns the time of the last renewal by the holder's clock, or 0 if
// auto_unlock_at was not written together with it.
func (l *Lock) AliveAt() Timestamp {
	if !l.flags.has(paired) {
		return 0
	}
	return l.timestamp(FieldAliveAt, l.aliveAt)
}

// timestamp returns 0 if the field was left by an earlier holder or cannot be read.
func (l *Lock) timestamp(f Field, t Timestamp) Timestamp {
	if !l.fresh.has(f) || l.bad.has(f) {
		return 0
	}
	return t
}

// AutoUnlockText returns the value of auto_unlock_at exactly as it was written, for
// comparison in etcd, or "" if AutoUnlockAt is 0.
func (l *Lock) AutoUnlockText() string {
	switch {
	case l.AutoUnlockAt().IsZero():
		return ""
	case l.rarely().autoText != "":
		return l.rare.autoText
	}
	return l.autoUnlockAt.String()
}

// Renewed reports whether auto_unlock_at was written after the acquisition.
func (l *Lock) Renewed() bool { return l.flags.has(renewed) && l.fresh.has(FieldAutoUnlockAt) }

// OverdueSince returns the earlier of alert_at and auto_unlock_at, or 0 if the lock
// is never overdue.
func (l *Lock) OverdueSince() Timestamp {
	if l.malformed() {
		return 0
	}
	alert, unlock := l.AlertAt(), l.AutoUnlockAt()
	if alert.IsZero() || !unlock.IsZero() && unlock < alert {
		return unlock
	}
	return alert
}

// Large reports whether the lock has, or had, a value that is too big to be read in
// one request with other locks.
func (l *Lock) Large() bool { return l.flags.has(large) }

// Valid reports whether the name can be the name of a lock.
func (l *Lock) Valid() bool { return l.Name != "" && l.Name[0] != '/' }

// SameFields reports whether the same fields of the protocol exist, whatever their values are.
func (l *Lock) SameFields(other *Lock) bool { return l.have == other.have }

// unknown returns the number of keys that are not fields of the protocol.
func (l *Lock) unknown() int { return int(l.Keys) - l.have.len() }

// Builder builds a lock from the keys of a listing, which must all have been read
// at one revision. They may be added in any order. Its size does not depend on the
// number of keys. The zero value is ready to use.
//
// The result is the same as that of Put and Delete with the same history, except
// for what a listing does not show: Revision does not include deletions, and Large
// does not include values that have been deleted.
type Builder struct {
	known   [len(fieldNames)]KV // by field; Mod is 0 if the field was not added
	unknown int32
	newest  int64
	written int64
	large   bool
}

// Add adds a key. A field that is added twice counts once. The builder refers to
// kv.Value until Lock is called, which copies what the lock keeps of it.
func (b *Builder) Add(kv KV) {
	b.newest = max(b.newest, kv.Mod)
	b.large = b.large || len(kv.Value) >= largeValue
	switch kv.Field {
	case FieldUnknown:
		b.unknown++
		return
	case FieldAnsweredAt, FieldBacktrace, FieldPID, FieldStack:
		kv.Value = nil
	case FieldAutoUnlockAt:
		b.written = max(b.written, kv.Mod)
	case FieldUUID:
		b.written = max(b.written, kv.Mod)
		// The acquisition happened when the uuid key was created, even if the
		// key was overwritten later.
		kv.Mod = kv.Create
	}
	b.known[kv.Field] = kv
}

// Lock returns the lock and empties the builder.
func (b *Builder) Lock(name string) Lock {
	l := Lock{Name: name, Keys: b.unknown}
	l.flags.set(large, b.large)
	var order [len(fieldNames)]*KV
	for i := range b.known {
		kv := &b.known[i]
		if kv.Mod == 0 {
			continue
		}
		// An insertion sort: the keys of most locks have the same revision, so
		// that nothing is moved.
		n := int(l.Keys - b.unknown)
		for ; n > 0 && order[n-1].Mod > kv.Mod; n-- {
			order[n] = order[n-1]
		}
		order[n] = kv
		l.Keys++
	}
	for _, kv := range order[:l.Keys-b.unknown] {
		l.put(*kv)
	}
	l.advance(b.newest)
	l.Written = b.written
	*b = Builder{}
	return l
}
