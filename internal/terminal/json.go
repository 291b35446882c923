package terminal

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// EscapeJSON escapes the characters in JSON that are not safe to print. Encoded JSON has
// them in strings only, where an escape means the same character.
func EscapeJSON(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		r, n := utf8.DecodeRune(raw)
		if r == '\n' || r == '\t' || Printable(r) {
			out = append(out, raw[:n]...)
		} else if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		} else {
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		raw = raw[n:]
	}
	return out
}
