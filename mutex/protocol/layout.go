package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Layout maps locks to keys in etcd: <prefix><name>/<field>.
type Layout struct {
	prefix string
}

// NewLayout returns the layout under prefix, which must end in a slash.
func NewLayout(prefix string) (Layout, error) {
	if !strings.HasSuffix(prefix, "/") {
		return Layout{}, fmt.Errorf("prefix %q: must end in a slash", prefix)
	}
	return Layout{prefix: prefix}, nil
}

// Prefix returns the prefix of the keys of all locks.
func (l Layout) Prefix() string { return l.prefix }

// End returns the first key after all keys with the prefix.
func (l Layout) End() string { return strings.TrimSuffix(l.prefix, "/") + string(rune('/'+1)) }

// Key returns the key of a field of a lock.
func (l Layout) Key(name, field string) string {
	return l.prefix + name + "/" + field
}

// Range returns the half-open range of the keys that begin with the lock's name
// and a slash: the keys of the lock, and those of locks with nested names.
func (l Layout) Range(name string) (from, end string) {
	base := l.prefix + name
	return base + "/", base + string(rune('/'+1))
}

// MaxName is the maximum length of a name in the key of a record, and wherever it is logged or kept, in bytes.
const MaxName = 512

// RecordKey returns the key of the record that a removal leaves under auditPrefix, which ends in a slash:
// <auditPrefix><name>//<token>. No name contains two slashes in a row, so that the records of a name are one
// range. A longer name than MaxName is truncated by Clip. The token of leftover fields that nobody held is
// the revision of their deletion.
func RecordKey(auditPrefix, name string, token int64) string {
	return RecordsOf(auditPrefix, name) + strconv.FormatInt(token, 10)
}

// RecordsOf returns the prefix of the keys of all records of a name.
func RecordsOf(auditPrefix, name string) string {
	return auditPrefix + Clip([]byte(name), MaxName) + "//"
}

// QuestionKey returns the key of the question to a holder under askPrefix, which ends in a slash:
// <askPrefix><name>//<uuid>.
func QuestionKey(askPrefix, name, uuid string) string { return askPrefix + name + "//" + uuid }

// Split splits a key under the prefix into the name and the field of a lock. A key that belongs to
// no lock (no name, no field, an empty segment, or a name that is not UTF-8) is not valid. Its name
// is a slash and the key without the prefix, which is never the name of a lock. If the key is
// valid, both results share its memory.
func (l Layout) Split(key []byte) (name, field []byte, valid bool) {
	rest := key[min(len(l.prefix), len(key)):]
	i := bytes.LastIndexByte(rest, '/')
	if i < 0 || i == len(rest)-1 || validName(rest[:i]) != nil {
		return append([]byte{'/'}, rest...), nil, false
	}
	return rest[:i], rest[i+1:], true
}

// ValidateName returns an error if name is not a valid name of a lock: it must be
// UTF-8, and none of its segments may be empty.
func ValidateName(name string) error {
	if err := validName([]byte(name)); err != nil {
		return fmt.Errorf("lock name %q %w", Clip([]byte(name), 200), err)
	}
	return nil
}

func validName(name []byte) error {
	switch {
	case len(name) == 0:
		return errors.New("is empty")
	case name[0] == '/', name[len(name)-1] == '/', bytes.Contains(name, []byte("//")):
		return errors.New("has an empty segment")
	case !utf8.Valid(name):
		return errors.New("is not UTF-8")
	}
	return nil
}

// Clip returns at most limit bytes of v as valid UTF-8, followed by an ellipsis of
// three bytes if v was longer. Logs and the ledger use it for everything that was
// read from etcd, which is untrusted and may be of any size.
func Clip(v []byte, limit int) string {
	head := v[:min(len(v), limit+utf8.UTFMax)]
	// A replacement character is longer than the byte it replaces, so the limit
	// is applied afterwards.
	s := strings.ToValidUTF8(string(head), "\uFFFD")
	if len(head) == len(v) && len(s) <= limit {
		return s
	}
	cut := min(len(s), limit)
	for cut < len(s) && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
