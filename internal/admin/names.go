package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// ParseName parses the name of a lock on a command line: as it is, or quoted as list and
// show print names that are not safe to print. It refuses keys.
func ParseName(prefix, given string) (string, error) {
	name := terminal.Unquote(given)
	if below, whole := strings.CutPrefix(name, prefix); whole && protocol.ValidateName(below) == nil {
		return "", fmt.Errorf("%s is a key: give the name of the lock without the prefix: %s", quoted(name), quoted(below))
	}
	return name, protocol.ValidateName(name)
}

// quoted formats a name for an error.
func quoted(name string) string { return terminal.QuoteAlways(protocol.Clip([]byte(name), 200)) }

// Limits of Names.
const (
	namesPage     = 1000 // keys
	namesRequests = 100
	maxNames      = 200
)

// Names returns names of locks that begin with a text, for a shell to complete: not many more than
// maxNames, without those that are not safe to print or to type. If there are more, the longest
// beginning that the names have in common is still that of all, so that a shell that continues with
// it leaves none out; if that takes too many requests, there are none.
func (a *Admin) Names(ctx context.Context, begin string) (names []string, err error) {
	from, end := a.config.Prefix+begin, clientv3.GetPrefixRangeEnd(a.config.Prefix+begin)
	for range namesRequests {
		page, err := a.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(namesPage))
		if err != nil {
			return nil, err
		}
		more := page.More
		for i, kv := range page.Kvs {
			from = string(kv.Key) + "\x00"
			key, field, valid := a.layout.Split(kv.Key)
			name := string(key)
			if valid && protocol.ParseField(field) != protocol.FieldUnknown && strings.HasPrefix(name, begin) && typable(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
			if len(names) >= maxNames {
				more = more || i+1 < len(page.Kvs)
				break
			}
		}
		common := commonBeginning(names)
		if !more || len(names) > 0 && len(common) <= len(begin) {
			return names, nil
		}
		if len(names) > 0 { // nothing that begins so can make it shorter
			from = max(from, clientv3.GetPrefixRangeEnd(a.config.Prefix+common))
		}
	}
	return nil, nil
}

// typable reports whether a name can be typed as it is in any shell, and is not a flag.
func typable(name string) bool {
	return terminal.Quote(name) == name && !strings.HasPrefix(name, "-") && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-:+%,", r)
	})
}

func commonBeginning(names []string) (common string) {
	for i, name := range names {
		if i == 0 {
			common = name
		}
		for !strings.HasPrefix(name, common) {
			common = common[:len(common)-1]
		}
	}
	return common
}
