// Package audit has the record that a manual unlock leaves in etcd: who removed which lock,
// when and why.
//
// Guaranteed: Encode and Parse bound everything, whatever the lock contains and whoever wrote
// the record. A record that Parse returns is valid UTF-8.
//
// Not guaranteed: that a record is true, since everybody with the right to write it can, or
// that its text is safe to print.
package audit

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// TTL is that of the lease that removes a record.
	TTL = 24 * time.Hour
	// MaxBytes is the maximum size of a record in etcd.
	MaxBytes = 32 << 10
	// MaxText is the maximum size of Who and of Reason, in bytes.
	MaxText = 512
)

// Record is the value of one key, in JSON.
type Record struct {
	// Prefix is the prefix of the locks: deployments may share the place of their records.
	Prefix   string `json:"prefix"`
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	// Who is the user and the host that removed the lock, When the clock of that host.
	Who    string    `json:"who"`
	Reason string    `json:"reason,omitempty"`
	When   time.Time `json:"when"`
	// Fields are the fields of the removed lock; More is the number of omitted keys.
	Fields []lockstore.Field `json:"fields,omitempty"`
	More   int               `json:"more_fields,omitempty"`
}

// New returns the record of the removal of a lock. The caller adds the rest.
func New(prefix string, removed lockstore.Record) Record {
	r := Record{
		Prefix: prefix, Name: removed.LoggedName(), UUID: removed.LoggedUUID(), Hostname: removed.Hostname(), Owner: removed.Owner(),
	}
	r.Fields, r.More = removed.Logged()
	return r
}

// LogValue implements slog.LogValuer: it has the fields of the lock.
func (r Record) LogValue() slog.Value { return lockstore.LogValue(r.Fields, r.More) }

// Key returns the key of a record under the audit prefix: leases have different numbers.
func Key(prefix string, when time.Time, lease int64) string {
	return fmt.Sprintf("%s%s-%x", prefix, when.UTC().Format("20060102T150405Z"), lease)
}

// Encode returns the value of the key. It omits the last fields where they would exceed MaxBytes.
func (r Record) Encode() string {
	r.Who, r.Reason = protocol.Clip([]byte(r.Who), MaxText), protocol.Clip([]byte(r.Reason), MaxText)
	for {
		text, _ := json.Marshal(r) // texts and the present time can be encoded
		if len(text) <= MaxBytes || len(r.Fields) == 0 {
			return string(text)
		}
		r.Fields = r.Fields[:len(r.Fields)-1]
		r.More++
	}
}

// Parse returns the record in the value of a key.
func Parse(value []byte) (Record, error) {
	if len(value) > MaxBytes {
		return Record{}, fmt.Errorf("%d bytes: a record has at most %d", len(value), MaxBytes)
	}
	var r Record
	if err := json.Unmarshal(value, &r); err != nil {
		return Record{}, fmt.Errorf("not a record: %w", err)
	}
	if err := protocol.ValidateName(r.Name); err != nil {
		return Record{}, fmt.Errorf("not a record: %w", err)
	}
	if err := r.checkFields(); err != nil {
		return Record{}, fmt.Errorf("not a record: %w", err)
	}
	for _, s := range []*string{&r.Name, &r.UUID, &r.Hostname, &r.Owner, &r.Who, &r.Reason} {
		*s = protocol.Clip([]byte(*s), MaxText)
	}
	return r, nil
}

// checkFields refuses what New never writes: in a log line one of two fields of the same name
// would replace the other.
func (r Record) checkFields() error {
	if r.More < 0 {
		return fmt.Errorf("more_fields is %d", r.More)
	}
	named := make(map[string]bool, len(r.Fields))
	for _, f := range r.Fields {
		if named[f.Name] {
			return fmt.Errorf("two fields have the name %q", protocol.Clip([]byte(f.Name), lockstore.MaxName))
		}
		if f.TruncatedFrom < 0 {
			return fmt.Errorf("truncated_from_bytes of field %q is %d", protocol.Clip([]byte(f.Name), lockstore.MaxName), f.TruncatedFrom)
		}
		named[f.Name] = true
	}
	return nil
}
