package lockstore

import (
	"log/slog"
	"strconv"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Record is a lock with its fields, as etcd held it at one revision.
type Record struct {
	lock.Lock
	// fields are its keys with their values, without some unknown ones where there
	// are too many. kept are the bytes of those that a survey kept.
	fields []field
	kept   int
	// spans cover its keys, and none of another's; empty where that takes too
	// many.
	spans []span
}

// field is one key of a record.
type field struct {
	name  string
	value []byte
}

// Field is one key of a lock, bounded, as valid UTF-8.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Untrusted text is bounded before it is logged or kept: names and values in
// bytes, a record in fields.
const (
	MaxName = 512

	maxLoggedValue  = 2 << 10
	maxLoggedFields = 32

	// What people are shown of a lock has higher bounds.
	maxShownFields = 256
	maxShownValue  = 64 << 10
	maxShownBytes  = 1 << 20 // of all
)

// LoggedName returns the lock's name, bounded, as valid UTF-8.
func (r Record) LoggedName() string { return lock.Clip([]byte(r.Name), MaxName) }

// LoggedUUID returns the uuid, bounded, as valid UTF-8.
func (r Record) LoggedUUID() string { return lock.Clip([]byte(r.UUID()), maxLoggedValue) }

// Logged returns the fields as they are logged, the known ones first, and how many
// keys are left out.
func (r Record) Logged() (fields []Field, more int) {
	fields = r.bounded(maxLoggedFields, maxLoggedValue)
	return fields, max(0, int(r.Keys)-len(fields))
}

// Shown returns the fields as people are shown them, the known ones first, and how
// many keys are left out.
func (r Record) Shown() (fields []Field, more int) {
	fields = r.bounded(maxShownFields, maxShownValue)
	total := 0
	for i, f := range fields {
		if total += len(f.Name) + len(f.Value); total > maxShownBytes {
			fields = fields[:i]
			break
		}
	}
	return fields, int(r.Keys) - len(fields)
}

// LogValue implements slog.LogValuer.
func (r Record) LogValue() slog.Value {
	fields, more := r.Logged()
	attrs := make([]slog.Attr, 0, len(fields)+1)
	for _, f := range fields {
		attrs = append(attrs, slog.String(f.Name, f.Value))
	}
	if more > 0 {
		attrs = append(attrs, slog.Int("more_fields", more))
	}
	return slog.GroupValue(attrs...)
}

func (r Record) bounded(count, bytes int) []Field {
	fields := make([]Field, 0, min(len(r.fields), count))
	named := make(map[string]bool, cap(fields))
	for _, known := range []bool{true, false} {
		for _, f := range r.fields {
			if (lock.ParseField([]byte(f.name)) != lock.FieldUnknown) != known || len(fields) >= count {
				continue
			}
			name := lock.Clip([]byte(f.name), MaxName)
			if named[name] {
				// Different names that are equal once clipped: in a JSON object one
				// would hide the other.
				name += "#" + strconv.Itoa(len(fields))
			}
			named[name] = true
			fields = append(fields, Field{Name: name, Value: lock.Clip(f.value, bytes)})
		}
	}
	return fields
}
