package pause

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	allKey   = "all"
	matchKey = "match/"
)

// Key returns the key of the pause of a glob, or of all locks if it is empty, without the prefix.
func Key(match string) string {
	if match == "" {
		return allKey
	}
	return matchKey + match
}

// Limits of a record, in bytes. Longer texts are cut where they are read.
const (
	MaxReason = 500
	maxBy     = 200
	maxSize   = 8 << 10 // that of the longest texts, escaped, and some
	maxMatch  = 500
	// maxCommas limits the time that a pattern takes, which may double with each.
	maxCommas = 10
)

// CheckMatch returns an error if a pattern is not valid, takes too long, or matches no name.
func CheckMatch(match string) error {
	shown := protocol.Clip([]byte(match), maxMatch)
	switch {
	case len(match) > maxMatch, strings.Count(match, ",") > maxCommas:
		return fmt.Errorf("the pattern %q is too long: at most %d bytes and %d commas", shown, maxMatch, maxCommas)
	case match == "", !utf8.ValidString(match), !doublestar.ValidatePattern(match):
		return fmt.Errorf("%q is not a valid pattern such as deploy/**", shown)
	case strings.HasPrefix(match, "/"), strings.HasSuffix(match, "/"):
		return fmt.Errorf("%q matches no lock: names exclude the prefix and neither begin nor end with a slash", shown)
	}
	return nil
}

// Value returns the value of the key of a pause.
func Value(p api.Pause) (string, error) {
	value, err := json.Marshal(p)
	return string(value), err
}

// Parse reads the record at a key, given without the prefix.
func Parse(key string, value []byte) (api.Pause, error) {
	var r api.Pause
	if len(value) > maxSize {
		return r, errors.New("it is too long")
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, err
	}
	switch {
	case Key(r.Match) != key:
		return r, fmt.Errorf("its key is not that of its match %q", protocol.Clip([]byte(r.Match), maxMatch))
	case r.Until.Unix() <= 0:
		return r, errors.New("it has no until")
	}
	if r.Match != "" {
		if err := CheckMatch(r.Match); err != nil {
			return r, err
		}
	}
	r.By, r.Reason = protocol.Clip([]byte(r.By), maxBy), protocol.Clip([]byte(r.Reason), MaxReason)
	r.Since, r.Until = r.Since.UTC(), r.Until.UTC()
	return r, nil
}

// words say whose pause it is and why.
func words(r api.Pause) string {
	var match string
	if r.Match != "" {
		match = fmt.Sprintf(" for %q", r.Match)
	}
	return strings.TrimSpace(fmt.Sprintf("by %s%s: %s", r.By, match, r.Reason))
}
