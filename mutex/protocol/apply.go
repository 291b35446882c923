package protocol

import "slices"

// KV is one key of a lock as etcd stores it.
type KV struct {
	// Field is the one that the last segment of the key names.
	Field Field
	Value []byte
	// Create, Mod and Lease are etcd's create_revision, mod_revision and lease.
	Create, Mod, Lease int64
}

// Put applies a write of one key.
func (l *Lock) Put(kv KV) {
	if kv.Create == kv.Mod {
		l.Keys++
	}
	l.put(kv)
}

func (l *Lock) put(kv KV) {
	l.advance(kv.Mod)
	l.flags.set(large, l.Large() || len(kv.Value) >= largeValue)
	f := kv.Field
	if f == FieldUnknown {
		return
	}
	l.leased = l.leased.without(f)
	if kv.Lease != 0 {
		l.leased = l.leased.with(f)
	}
	l.have = l.have.with(f)
	if kv.Mod == l.Revision {
		l.last = l.last.with(f)
	}
	if l.set(f, kv.Value) {
		l.good(f)
	} else {
		l.fault(f, Clip(kv.Value, maxFault))
	}
	if f == FieldUUID && kv.Create != l.Token {
		l.Token = kv.Create
		l.fresh = l.last
	}
	if l.Token != 0 && kv.Mod >= l.Token {
		l.fresh = l.fresh.with(f)
	}
	if f == FieldUUID || f == FieldAutoUnlockAt {
		l.Written = max(l.Written, kv.Mod)
	}
	if f == FieldAutoUnlockAt {
		l.flags.set(renewed, l.Token != 0 && kv.Mod > l.Token)
	}
	if f == FieldAutoUnlockAt || f == FieldAliveAt {
		l.flags.set(paired, l.last.has(FieldAutoUnlockAt) && l.last.has(FieldAliveAt))
	}
}

// Delete applies the deletion of one key at revision rev.
func (l *Lock) Delete(f Field, rev int64) {
	l.advance(rev)
	l.Keys--
	l.good(f)
	for _, s := range []*fieldSet{&l.have, &l.fresh, &l.last, &l.leased} {
		*s = s.without(f)
	}
	switch f {
	case FieldUUID:
		l.Token, l.fresh = 0, 0
	case FieldAliveAt, FieldAutoUnlockAt:
		l.flags.set(paired, false)
	}
}

// good records that a field has no value that cannot be read, fault that it has one.
func (l *Lock) good(f Field) {
	if l.bad.has(f) {
		l.fault(f, "")
		l.bad = l.bad.without(f)
	}
}

func (l *Lock) fault(f Field, value string) {
	l.bad = l.bad.with(f)
	r, faults := l.rarely(), [len(faulty)]string{}
	if r.faults != nil {
		faults = *r.faults
	}
	faults[slices.Index(faulty[:], f)] = value
	if r.faults = &faults; faults == [len(faulty)]string{} {
		r.faults = nil
	}
	l.setRare(r)
}

// Newest reports whether a known field was written at Revision.
func (l *Lock) Newest(f Field) bool { return l.last.has(f) }

// advance records that a key was written or deleted at revision rev.
func (l *Lock) advance(rev int64) {
	if rev > l.Revision {
		l.Revision, l.last = rev, 0
	}
}

// set stores the value of a field and reports whether the value is valid.
func (l *Lock) set(f Field, v []byte) bool {
	switch f {
	case FieldUUID:
		if len(v) == 0 || len(v) > maxUUIDLen {
			return false
		}
		l.setUUID(v)
	case FieldHostname:
		l.hostname = intern(v)
	case FieldOwner:
		l.owner = intern(v)
	case FieldLockedAt:
		return read(v, &l.lockedAt)
	case FieldAlertAt:
		return read(v, &l.alertAt)
	case FieldAliveAt:
		return read(v, &l.aliveAt)
	case FieldAutoUnlockAt:
		return l.setAutoUnlockAt(v)
	}
	if i := slices.Index(rareTexts[:], f); i >= 0 {
		r := l.rarely()
		r.texts[i] = intern(v)
		l.setRare(r)
	}
	return true
}

func (l *Lock) setUUID(v []byte) {
	r := l.rarely()
	u, canonical := parseUUID(v)
	l.uuid, r.uuidText = u, ""
	if !canonical {
		r.uuidText = string(v)
	}
	l.setRare(r)
}

func read(v []byte, into *Timestamp) bool {
	t, err := ParseTimestamp(v)
	*into = t
	return err == nil
}

func (l *Lock) setAutoUnlockAt(v []byte) bool {
	r, ok := l.rarely(), read(v, &l.autoUnlockAt)
	r.autoText = ""
	if ok && string(l.autoUnlockAt.append(make([]byte, 0, 24))) != string(v) {
		r.autoText = string(v)
	}
	l.setRare(r)
	return ok
}
