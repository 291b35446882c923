package check

import (
	"fmt"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// unsafe are the characters with a meaning in the output of a plugin, or in the shells and
// web pages that receive it: the illegal_macro_output_chars of Nagios, and the backslash,
// which some readers expand in "\n".
const unsafe = "|`~$&'\"<>\\"

// Limits in bytes. The first line stays below 1 KiB, which is all that NRPE 2 forwards;
// Nagios reads 8 KiB.
const (
	maxName        = 100
	maxReason      = 200
	maxExplanation = 400
	maxText        = 480
	maxOutput      = 8000
)

// clean makes untrusted text safe for the output of a plugin, and bounds it.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case strings.ContainsRune(unsafe, r):
			return -1
		}
		return r
	}, s)
	return clip(terminal.Strip(s), limit)
}

// clip cuts text off after limit bytes, between characters, and marks the cut.
func clip(s string, limit int) string { return protocol.Clip([]byte(s), limit) }

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// inLine is the maximum number of names in the first line.
const inLine = 5

// list joins the first names and counts the others.
func list(all []string, total int) string {
	shown := all[:min(len(all), inLine)]
	text := strings.Join(shown, ", ")
	if more := total - len(shown); more > 0 && len(shown) > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
