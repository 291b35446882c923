package admin

import (
	"fmt"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// ParseName parses the name of a lock on a command line: as it is, or quoted as list and
// show print names that are not safe to print. It refuses keys.
func ParseName(prefix, given string) (string, error) {
	name := terminal.Unquote(given)
	if below, whole := strings.CutPrefix(name, prefix); whole && lock.ValidateName(below) == nil {
		return "", fmt.Errorf("%s is a key: give the name of the lock without the prefix: %s", quoted(name), quoted(below))
	}
	return name, lock.ValidateName(name)
}

// quoted formats a name for an error.
func quoted(name string) string { return terminal.QuoteAlways(lock.Clip([]byte(name), 200)) }
