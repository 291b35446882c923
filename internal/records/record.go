// Package records removes locks for users, keeps who did that, when and why, and says who may: the
// record of a manual unlock in etcd, the unlock that writes it, and the user who asks for it.
//
// Guaranteed: a lock is removed only while it is held under the given uuid, whole, in one
// transaction, which also writes the record. Encode and Parse bound everything, whatever the lock
// contains and whoever wrote the record; a record that Parse returns is valid UTF-8. A name of the
// web configuration file was authenticated against the file as it is at the time of the request,
// whatever checked the request before.
//
// Not guaranteed: that the holder of a removed lock has stopped; that a record is true, since any
// client with the right to write it can, or that its text is safe to print; that a header was
// written by the proxy. No other client may be able to connect, or the file must authenticate the
// proxy, whose name is then added.
package records

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// ttl is that of the lease that removes a record.
	ttl = 24 * time.Hour
	// MaxBytes is the maximum size of a record in etcd.
	MaxBytes = 32 << 10
	// MaxText is the maximum size of Who and of Reason, in bytes.
	MaxText = 512
)

// Record is the value of one key, in JSON: a lock that a user removed, with the fields as in the
// log.
type Record struct {
	// Prefix is the prefix of the locks: deployments may share the place of their records.
	Prefix string `json:"prefix"`
	// When is according to the clock of the host where the user removed the lock.
	When time.Time `json:"when"`
	// Forced has no time and no trigger in etcd; Parse adds them.
	api.Forced
}

// keyOf returns the key of a record under the audit prefix: leases have different numbers.
func keyOf(prefix string, when time.Time, lease int64) string {
	return fmt.Sprintf("%s%s-%x", prefix, when.UTC().Format("20060102T150405Z"), lease)
}

// Encode returns the value of the key. It omits the last fields where they would exceed MaxBytes.
func (r Record) Encode() string {
	r.Who, r.Reason = protocol.Clip([]byte(r.Who), MaxText), protocol.Clip([]byte(r.Reason), MaxText)
	for {
		// Texts and the present time can be encoded. When is the time, and the revision is that of
		// the transaction that writes the record, which is not known yet.
		text, _ := json.Marshal(struct {
			Record
			At       *time.Time `json:"at,omitempty"`
			Revision int64      `json:"revision,omitempty"`
		}{Record: r})
		if len(text) <= MaxBytes || len(r.Fields) == 0 {
			return string(text)
		}
		r.Fields = r.Fields[:len(r.Fields)-1]
		r.MoreFields++
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
	// What a record does not say is not taken from whoever wrote it.
	r.At, r.Trigger, r.By, r.Revision, r.Verdict = r.When.UTC(), verdict.Manual, api.Other, 0, nil
	if r.Fields == nil {
		r.Fields = []api.Field{}
	}
	return r, nil
}

// checkFields refuses what the log never has: in a log line one of two fields of the same name
// would replace the other.
func (r Record) checkFields() error {
	if r.MoreFields < 0 {
		return fmt.Errorf("more_fields is %d", r.MoreFields)
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
