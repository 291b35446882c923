package lock

import "unique"

// maxLabelLen bounds what is kept of a hostname and an owner: a DNS name has
// at most 253 bytes.
const maxLabelLen = 253

// largeValue is the size in bytes from which on a value makes its lock Large.
const largeValue = 16 << 10

// Lock is what is kept of one lock: everything that decides on it, but none of
// its big values. It is built by Put and Delete in the order of revisions. A
// copy is independent of the original.
type Lock struct {
	// Name is all between the prefix and the field. For a key that belongs to
	// no lock it begins with a slash (see Layout.Split).
	Name string
	// Token is the create_revision of the uuid key, by which a resource can
	// fence off earlier owners; 0 where there is no uuid.
	Token int64
	// Revision is the newest one at which a key of the lock was seen written
	// or deleted.
	Revision int64
	// Keys is the number of keys that lie directly under the name.
	Keys int32

	// have holds the known fields that exist, fresh those of them that this
	// acquisition wrote, last those put at Revision, bad those whose value
	// cannot be read, leased those that carry a lease.
	have, fresh, last, bad, leased fieldSet
	is                             traits

	uuid            uuid
	hostname, owner interned
	lockedAt        Timestamp
	alertAt         Timestamp
	autoUnlockAt    Timestamp
	aliveAt         Timestamp
	// autoText is the value of auto_unlock_at where Timestamp.String does not
	// give it back.
	autoText *string
}

// traits are what can be said with yes or no; together, as a byte more would
// make every lock 8 bytes larger.
type traits uint8

const (
	paired  traits = 1 << iota // alive_at was written together with the auto_unlock_at in force
	renewed                    // auto_unlock_at was written after the acquisition
	large                      // a value too big to be read along with other locks' was seen
)

func (t traits) has(one traits) bool { return t&one != 0 }

func (t *traits) set(one traits, yes bool) {
	if *t &^= one; yes {
		*t |= one
	}
}

// interned is a string whose equals share their memory. The zero value is the
// empty string.
type interned struct{ h unique.Handle[string] }

func intern(v []byte) interned { return interned{unique.Make(Clip(v, maxLabelLen))} }

func (i interned) String() string {
	if i == (interned{}) {
		return ""
	}
	return i.h.Value()
}

// UUID returns the value of the uuid key, and "" where there is none or it is
// too long to be one.
func (l *Lock) UUID() string {
	if l.Token == 0 || l.bad.has(FieldUUID) {
		return ""
	}
	return l.uuid.String()
}

// Hostname returns the owner's host, clipped to the length of a DNS name.
func (l *Lock) Hostname() string {
	if !l.fresh.has(FieldHostname) {
		return ""
	}
	return l.hostname.String()
}

// Owner returns the owner's service name, clipped like Hostname.
func (l *Lock) Owner() string {
	if !l.fresh.has(FieldOwner) {
		return ""
	}
	return l.owner.String()
}

// LockedAt returns the owner's clock at the acquisition.
func (l *Lock) LockedAt() Timestamp { return l.timestamp(FieldLockedAt, l.lockedAt) }

// AlertAt returns the time from which on people are told.
func (l *Lock) AlertAt() Timestamp { return l.timestamp(FieldAlertAt, l.alertAt) }

// AutoUnlockAt returns the time from which on the lock may be removed.
func (l *Lock) AutoUnlockAt() Timestamp { return l.timestamp(FieldAutoUnlockAt, l.autoUnlockAt) }

// AliveAt returns the owner's clock at its last renewal, if that renewal wrote
// the deadline in force.
func (l *Lock) AliveAt() Timestamp {
	if !l.is.has(paired) {
		return 0
	}
	return l.timestamp(FieldAliveAt, l.aliveAt)
}

// timestamp hides what is a leftover of an earlier owner or unreadable.
func (l *Lock) timestamp(f Field, t Timestamp) Timestamp {
	if !l.fresh.has(f) || l.bad.has(f) {
		return 0
	}
	return t
}

// AutoUnlockText returns the very value of auto_unlock_at, for comparison in
// etcd; "" where AutoUnlockAt is none.
func (l *Lock) AutoUnlockText() string {
	switch {
	case l.AutoUnlockAt().IsZero():
		return ""
	case l.autoText != nil:
		return *l.autoText
	}
	return l.autoUnlockAt.String()
}

// Renewed reports whether auto_unlock_at was written after the acquisition.
func (l *Lock) Renewed() bool { return l.is.has(renewed) && l.fresh.has(FieldAutoUnlockAt) }

// OverdueSince returns the time from which on the lock is past its alert_at or,
// where that comes first, its auto_unlock_at; 0 for never.
func (l *Lock) OverdueSince() Timestamp {
	if l.malformed() || l.Token == 0 {
		return 0
	}
	alert, unlock := l.AlertAt(), l.AutoUnlockAt()
	if alert.IsZero() || !unlock.IsZero() && unlock < alert {
		return unlock
	}
	return alert
}

// Large tells that a value too big to be read along with other locks' was seen.
func (l *Lock) Large() bool { return l.is.has(large) }

// Valid tells whether the name is one that a lock can have.
func (l *Lock) Valid() bool { return l.Name != "" && l.Name[0] != '/' }

// unknown returns the number of keys that are no fields we know.
func (l *Lock) unknown() int { return int(l.Keys) - l.have.len() }
