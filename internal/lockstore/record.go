package lockstore

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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
	// read is when its read began.
	read time.Time
}

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
			shown := api.Field{Name: name, Value: protocol.Clip(f.value, bytes)}
			if shown.Value != strings.ToValidUTF8(string(f.value), "\uFFFD") {
				shown.TruncatedFrom = len(f.value)
			}
			fields = append(fields, shown)
		}
	}
	return fields
}

// surveyor finds the gaps in the range of a lock between keys that do not belong to it: those
// of nested names, and those of other programs, which have a lease. Each gap becomes a span as
// a whole, so that the transaction detects a key that is written into it later.
type surveyor struct {
	layout protocol.Layout
	name   string
	base   string

	build protocol.Builder
	// owned are the gaps with keys of the lock, empty the first of the gaps without.
	owned, empty []span
	// from is the start of the present gap. own is set if it has a key of the lock.
	from string
	own  bool
}

func newSurveyor(layout protocol.Layout, name string) *surveyor {
	base, _ := layout.Range(name)
	return &surveyor{layout: layout, name: name, base: base, from: base}
}

// add adds a key and reports whether it belongs to the lock. Keys must be added in order,
// except that single keys of the lock may be added first.
func (s *surveyor) add(kv *mvccpb.KeyValue) (own bool) {
	name, fieldName, valid := s.layout.Split(kv.Key)
	f := protocol.ParseField(fieldName)
	if !valid || string(name) != s.name || f == protocol.FieldUnknown && kv.Lease != 0 {
		if key := string(kv.Key); key >= s.from {
			from, end := s.group(key)
			s.closeGap(from)
			s.from = end
		}
		return false
	}
	s.build.Add(protocol.KV{Field: f, Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease})
	s.own = true
	return true
}

// group returns the range of all keys under the same nested name as a key, or of the key alone
// if it is not under a nested name.
func (s *surveyor) group(key string) (from, end string) {
	if i := strings.IndexByte(key[len(s.base):], '/'); i >= 0 {
		nested := key[:len(s.base)+i]
		return nested + "/", nested + string(rune('/'+1))
	}
	return key, key + "\x00"
}

func (s *surveyor) closeGap(end string) {
	gap := span{from: s.from, end: end}
	switch {
	case s.own:
		s.owned = append(s.owned, gap)
	case gap.from < end && len(s.empty) < maxSpans:
		s.empty = append(s.empty, gap)
	}
	s.own = false
}

// finish returns the lock, and the spans to compare and to delete: all gaps or, if those are
// too many, the gaps with keys of the lock.
func (s *surveyor) finish() (protocol.Lock, []span) {
	_, end := s.layout.Range(s.name)
	s.closeGap(end)
	spans := s.owned
	if len(spans) > 0 && len(spans)+len(s.empty) <= maxSpans {
		spans = append(spans, s.empty...)
	}
	return s.build.Lock(s.name), spans
}

// A survey reads page by page and skips nested names. If there are too many pages, it stops;
// the lock is then not removed, and counted as a failure. The pages are small because they
// include values: etcd 3.7 answers keys-only ranges from its index, which has no leases.
const (
	surveyPages = 4_000
	// optionalPages is for a lock that can be deleted without a survey.
	optionalPages = 8
	// Pages grow from firstPage to surveyPage, and shrink so that none but the first one
	// of big values has many more bytes than pageBytes.
	firstPage  = 4
	surveyPage = 16
	pageBytes  = 1 << 20
)

// nextPage returns how many keys the page after one of the given size has.
func nextPage(keys int64, size int) int64 {
	if size > pageBytes {
		return max(1, keys*pageBytes/int64(size))
	}
	return min(4*keys, surveyPage)
}

// keptBytes bounds the values of unknown fields that a survey keeps.
const keptBytes = 1 << 20

// keep adds an unknown field to the record, up to the limits of Shown. It copies the field, so
// that the memory of the answer can be freed.
func (rec *Record) keep(f field) {
	if protocol.ParseField([]byte(f.name)) != protocol.FieldUnknown || len(rec.fields) >= maxShownFields || rec.kept >= keptBytes {
		return
	}
	f.name = strings.Clone(f.name[:min(len(f.name), protocol.MaxName+utf8.UTFMax)])
	f.value = slices.Clone(f.value[:min(len(f.value), maxShownValue+utf8.UTFMax)])
	rec.kept += len(f.name) + len(f.value)
	rec.fields = append(rec.fields, f)
}

// survey finds the spans of all keys of a lock at a revision. rec has its known fields. If the
// survey takes more than pages, it returns rec unchanged.
func (st Store) survey(ctx context.Context, rec Record, revision int64, pages int) (Record, error) {
	s := newSurveyor(st.Layout, rec.Name)
	from, end := st.Layout.Range(rec.Name)
	page, largest := int64(firstPage), int64(surveyPage)
	for ; ; pages-- {
		if pages == 0 || len(s.owned) > maxSpans {
			return rec, nil
		}
		answers, err := st.Get(ctx, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(end),
			clientv3.WithLimit(page), clientv3.WithRev(revision))})
		if err != nil && page > 1 && ctx.Err() == nil {
			page, largest = 1, 1 // the values may be too big to come together in time
			continue
		}
		if err != nil {
			return Record{}, err
		}
		kvs, size := answers[0].Kvs, 0
		for _, kv := range kvs {
			size += len(kv.Key) + len(kv.Value)
			if s.add(kv) {
				rec.keep(st.field(rec.Name, kv))
			}
		}
		if !answers[0].More || len(kvs) == 0 {
			break
		}
		_, from = s.group(string(kvs[len(kvs)-1].Key))
		page = min(nextPage(page, size), largest)
	}
	all, spans := s.finish()
	rec.spans = spans
	rec.Revision, rec.Keys = max(rec.Revision, all.Revision), all.Keys
	return rec, nil
}
