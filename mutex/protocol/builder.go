package protocol

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
	case FieldBacktrace, FieldPID, FieldStack:
		kv.Value = nil
	case FieldUUID:
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
	*b = Builder{}
	return l
}
