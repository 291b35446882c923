package lock

// Builder makes a lock of the keys of a listing, all of which are taken at one
// revision, in any order. Its size does not depend on how many there are. The
// zero value is ready to use.
//
// The result is what Put and Delete would have made of the same history, except
// for what a listing cannot tell: Revision knows no deletions, and Large no
// values that are gone.
type Builder struct {
	known   [len(fieldNames)]KV // by field; Mod is 0 where it was not seen
	unknown int32
	newest  int64
	large   bool
}

// Add takes a key; a field that is taken twice counts once. Values that decide
// something are referenced until Lock is called, and copied there as far as they
// are kept.
func (b *Builder) Add(kv KV) {
	b.newest = max(b.newest, kv.Mod)
	b.large = b.large || len(kv.Value) >= largeValue
	switch kv.Field {
	case FieldUnknown:
		b.unknown++
		return
	case FieldBacktrace, FieldPID, FieldPurpose:
		kv.Value = nil
	case FieldUUID:
		// An acquisition is as old as its uuid key, even where that was
		// written over since.
		kv.Mod = kv.Create
	}
	b.known[kv.Field] = kv
}

// Lock returns the lock and empties the builder.
func (b *Builder) Lock(name string) Lock {
	l := Lock{Name: name, Keys: b.unknown}
	l.is.set(large, b.large)
	var order [len(fieldNames)]*KV
	for i := range b.known {
		kv := &b.known[i]
		if kv.Mod == 0 {
			continue
		}
		// Most locks were written at one revision, so that this is one pass.
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
	*b = Builder{}
	return l
}
