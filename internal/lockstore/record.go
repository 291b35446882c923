package lockstore

import (
	"log/slog"
	"strconv"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Record is a lock with its fields as they were in etcd at one revision.
type Record struct {
	protocol.Lock
	// fields are its keys with their values. If there are too many, some unknown ones are
	// missing. kept is the size in bytes of those that a survey found.
	fields []field
	kept   int
	// spans contain all keys of the lock and no others. They are empty if there would be
	// too many of them for a transaction.
	spans []span
}

// field is one key of a record.
type field struct {
	name  string
	value []byte
}

// Untrusted text is truncated before it is logged or kept.
const (
	maxLoggedValue  = 2 << 10 // bytes
	maxLoggedFields = 32

	// The API and the commands show more of a lock.
	maxShownFields = 256
	maxShownValue  = 64 << 10 // bytes
	maxShownBytes  = 1 << 20  // in total
)

// LoggedName returns the name of the lock, truncated, as valid UTF-8.
func (r Record) LoggedName() string { return protocol.Clip([]byte(r.Name), protocol.MaxName) }

// LoggedUUID returns the uuid, truncated, as valid UTF-8.
func (r Record) LoggedUUID() string { return protocol.Clip([]byte(r.UUID()), maxLoggedValue) }

// Removed returns the lock as one that was removed, with what the log and the records have of it.
func (r Record) Removed() api.Forced {
	f := api.Forced{Name: r.LoggedName(), UUID: r.LoggedUUID(), Token: r.Token, Hostname: r.Hostname(), Owner: r.Owner()}
	f.Fields, f.MoreFields = r.Logged()
	for _, field := range f.Fields {
		if field.Name == protocol.FieldPID.String() {
			f.PID = protocol.Clip([]byte(field.Value), protocol.MaxName)
		}
	}
	return f
}

// Logged returns the fields for the log, known ones first, and the number of omitted keys.
func (r Record) Logged() (fields []api.Field, more int) {
	fields = r.bounded(maxLoggedFields, maxLoggedValue)
	return fields, max(0, int(r.Keys)-len(fields))
}

// Shown returns the fields for the API and the commands, known ones first, and the number of
// omitted keys.
func (r Record) Shown() (fields []api.Field, more int) {
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
func (r Record) LogValue() slog.Value { return LogValue(r.Logged()) }

// LogValue returns fields, and the number of those omitted, as Record.LogValue does.
func LogValue(fields []api.Field, more int) slog.Value {
	attrs := make([]slog.Attr, 0, len(fields)+1)
	for _, f := range fields {
		attrs = append(attrs, slog.String(f.Name, f.Value))
	}
	if more > 0 {
		attrs = append(attrs, slog.Int("more_fields", more))
	}
	return slog.GroupValue(attrs...)
}

func (r Record) bounded(count, bytes int) []api.Field {
	fields := make([]api.Field, 0, min(len(r.fields), count))
	named := make(map[string]bool, cap(fields))
	for _, known := range []bool{true, false} {
		for _, f := range r.fields {
			if (protocol.ParseField([]byte(f.name)) != protocol.FieldUnknown) != known || len(fields) >= count {
				continue
			}
			clipped := protocol.Clip([]byte(f.name), protocol.MaxName)
			name := clipped
			// Different names that are equal when truncated: in a JSON object one would replace
			// the other.
			for i := len(fields); named[name]; i++ {
				name = clipped + "#" + strconv.Itoa(i)
			}
			named[name] = true
			fields = append(fields, truncated(name, f.value, bytes))
		}
	}
	return fields
}

func truncated(name string, value []byte, bytes int) api.Field {
	f := api.Field{Name: name, Value: protocol.Clip(value, bytes)}
	if f.Value != strings.ToValidUTF8(string(value), "\uFFFD") {
		f.TruncatedFrom = len(value)
	}
	return f
}
