package protocol

import "math/bits"

// Field is the last segment of a lock's key.
type Field uint8

// The fields of protocol 1. FieldUnknown stands for every other last segment:
// such keys are counted, shown and removed with their lock.
const (
	FieldUnknown Field = iota
	FieldAlertAt
	FieldAliveAt
	FieldAnsweredAt
	FieldAutoUnlockAt
	FieldBacktrace
	FieldHostname
	FieldLockedAt
	FieldOwner
	FieldPID
	FieldPurpose
	FieldStack
	FieldStatus
	FieldUUID
)

// fieldNames is indexed by Field and in key order.
var fieldNames = [...]string{
	FieldAlertAt:      "alert_at",
	FieldAliveAt:      "alive_at",
	FieldAnsweredAt:   "answered_at",
	FieldAutoUnlockAt: "auto_unlock_at",
	FieldBacktrace:    "backtrace",
	FieldHostname:     "hostname",
	FieldLockedAt:     "locked_at",
	FieldOwner:        "owner",
	FieldPID:          "pid",
	FieldPurpose:      "purpose",
	FieldStack:        "stack",
	FieldStatus:       "status",
	FieldUUID:         "uuid",
}

// rareTexts are the short texts that few locks have: what Text returns besides hostname and owner. Adding
// one takes a constant, its name above, and a place here.
var rareTexts = [...]Field{FieldPurpose, FieldStatus}

// faulty are the fields that may have values that cannot be read.
var faulty = [...]Field{FieldUUID, FieldAutoUnlockAt, FieldAlertAt, FieldLockedAt, FieldAliveAt}

// HolderFields returns the fields that say who held a lock, what for and until when: what is known
// of an earlier holder.
func HolderFields() []Field {
	return []Field{FieldUUID, FieldHostname, FieldOwner, FieldPurpose, FieldLockedAt, FieldAliveAt, FieldAutoUnlockAt}
}

// ParseField returns the field that the last segment of a key names, or
// FieldUnknown.
func ParseField(segment []byte) Field {
	for f := FieldUnknown + 1; int(f) < len(fieldNames); f++ {
		if string(segment) == fieldNames[f] { // which does not allocate
			return f
		}
	}
	return FieldUnknown
}

// String returns the segment of a key that names the field, or "unknown" for
// FieldUnknown.
func (f Field) String() string {
	if f == FieldUnknown || int(f) >= len(fieldNames) {
		return "unknown"
	}
	return fieldNames[f]
}

// fieldSet is a set of fields.
type fieldSet uint16

func (s fieldSet) has(f Field) bool         { return s&(1<<f) != 0 }
func (s fieldSet) len() int                 { return bits.OnesCount16(uint16(s)) }
func (s fieldSet) with(f Field) fieldSet    { return s | 1<<f }
func (s fieldSet) without(f Field) fieldSet { return s &^ (1 << f) }
