package admin

import (
	"fmt"
	"strings"

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
