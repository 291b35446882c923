package protocol

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"time"
)

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

// ParseField returns the field that the last segment of a key names, or FieldUnknown.
func ParseField(segment []byte) Field {
	for f := FieldUnknown + 1; int(f) < len(fieldNames); f++ {
		if string(segment) == fieldNames[f] { // which does not allocate
			return f
		}
	}
	return FieldUnknown
}

// String returns the segment of a key that names the field, or "unknown" for FieldUnknown.
func (f Field) String() string {
	if f == FieldUnknown || int(f) >= len(fieldNames) {
		return "unknown"
	}
	return fieldNames[f]
}

type fieldSet uint16

func (s fieldSet) has(f Field) bool         { return s&(1<<f) != 0 }
func (s fieldSet) len() int                 { return bits.OnesCount16(uint16(s)) }
func (s fieldSet) with(f Field) fieldSet    { return s | 1<<f }
func (s fieldSet) without(f Field) fieldSet { return s &^ (1 << f) }

// Timestamps are plausible from 2001 to 2255. Smaller numbers are zeros and
// intervals. Larger ones are usually milliseconds, with which a lock would never
// expire, and beyond 9,223,372,036 s the nanoseconds overflow an int64.
const (
	minSeconds = 1_000_000_000
	maxSeconds = 9_000_000_000 // exclusive
)

// maxTimestampLen bounds the work of parsing. Every valid form is far shorter.
const maxTimestampLen = 64

var (
	errTimestampForm  = errors.New("neither seconds since the epoch nor RFC 3339")
	errTimestampRange = fmt.Errorf("outside [%d, %d) seconds since the epoch", minSeconds, int64(maxSeconds))
)

// Timestamp is an instant in nanoseconds since the epoch; 0 means none.
type Timestamp int64

// ParseTimestamp parses decimal seconds since the epoch, with or without a
// fraction, or RFC 3339. Digits after the ninth of the fraction are dropped.
func ParseTimestamp(v []byte) (Timestamp, error) {
	if len(v) > maxTimestampLen {
		return 0, errTimestampForm
	}
	if t, ok, err := parseSeconds(v); ok {
		return t, err
	}
	t, err := time.Parse(time.RFC3339Nano, string(v))
	if err != nil {
		return 0, errTimestampForm
	}
	return plausible(t.Unix(), int64(t.Nanosecond()))
}

// parseSeconds returns ok only if v has the form of decimal seconds.
func parseSeconds(v []byte) (t Timestamp, ok bool, err error) {
	var sec, nsec int64
	i := 0
	for ; i < len(v) && isDigit(v[i]); i++ {
		sec = min(sec*10+int64(v[i]-'0'), maxSeconds)
	}
	if i == 0 {
		return 0, false, nil
	}
	if i < len(v) {
		if v[i] != '.' || i+1 == len(v) {
			return 0, false, nil
		}
		unit := int64(time.Second) / 10
		for i++; i < len(v); i++ {
			if !isDigit(v[i]) {
				return 0, false, nil
			}
			nsec += int64(v[i]-'0') * unit
			unit /= 10
		}
	}
	t, err = plausible(sec, nsec)
	return t, true, err
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func plausible(sec, nsec int64) (Timestamp, error) {
	if sec < minSeconds || sec >= maxSeconds {
		return 0, errTimestampRange
	}
	return Timestamp(sec*int64(time.Second) + nsec), nil
}

// TimestampOf returns t as a Timestamp.
func TimestampOf(t time.Time) Timestamp { return Timestamp(t.UnixNano()) }

// IsZero reports whether there is no timestamp.
func (t Timestamp) IsZero() bool { return t == 0 }

// Time returns the instant in UTC, or the zero time for none.
func (t Timestamp) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t)).UTC()
}

// Seconds returns the seconds since the epoch, for metrics.
func (t Timestamp) Seconds() float64 { return float64(t) / float64(time.Second) }

// String returns the form that clients write: decimal seconds, with a fraction
// without trailing zeros if there is one.
func (t Timestamp) String() string {
	return string(t.append(make([]byte, 0, 24)))
}

func (t Timestamp) append(b []byte) []byte {
	b = strconv.AppendInt(b, int64(t)/int64(time.Second), 10)
	nsec := int64(t) % int64(time.Second)
	if nsec == 0 {
		return b
	}
	b = append(b, '.')
	for unit := int64(time.Second) / 10; nsec > 0; unit /= 10 {
		b = append(b, byte('0'+nsec/unit))
		nsec %= unit
	}
	return b
}

// maxUUIDLen is the maximum length of a uuid in bytes. A longer value makes the
// lock malformed; those of all known clients are far shorter.
const maxUUIDLen = 256

// uuidGroups are the bytes in each group of the canonical form of a uuid: lower-case hex, which is
// kept in 16 bytes. Any other text is kept as it is, so that exactly this value can be compared in etcd.
var uuidGroups = [...]int{4, 2, 2, 2, 6}

// parseUUID returns the bytes of a canonical uuid.
func parseUUID(v []byte) (u [16]byte, canonical bool) {
	if len(v) != 36 || bytes.ContainsAny(v, "ABCDEF") {
		return u, false
	}
	from, to := 0, 0
	for _, n := range uuidGroups {
		end := from + 2*n
		if _, err := hex.Decode(u[to:], v[from:end]); err != nil || end < len(v) && v[end] != '-' {
			return [16]byte{}, false
		}
		from, to = end+1, to+n
	}
	return u, true
}

func uuidText(u [16]byte) string {
	b, from := make([]byte, 0, 37), 0
	for _, n := range uuidGroups {
		b = append(hex.AppendEncode(b, u[from:from+n]), '-')
		from += n
	}
	return string(b[:36])
}
