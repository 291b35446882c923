package text

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// EscapeJSON escapes what JSON may hold but a terminal must not get, and a quoted
// string of YAML too (which has characters beyond the first plane escaped already).
// Outside of strings there is nothing of the kind.
func EscapeJSON(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		r, n := utf8.DecodeRune(raw)
		if r == '\n' || r == '\t' || Shows(r) {
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
