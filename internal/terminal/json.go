package terminal

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// EscapeJSON escapes the characters in JSON that are not safe to print. Encoded JSON has
// them in strings only, where the escape means the same character.
func EscapeJSON(encoded []byte) []byte {
	return escapeEncoded(encoded, func(out []byte, r rune) []byte {
		hi, lo := utf16.EncodeRune(r)
		return fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
	})
}

// EscapeYAML escapes the characters in JSON that are not safe to print for readers of
// YAML, which has no surrogate pairs.
func EscapeYAML(encoded []byte) []byte {
	return escapeEncoded(encoded, func(out []byte, r rune) []byte { return fmt.Appendf(out, `\U%08x`, r) })
}

// escapeEncoded leaves line ends as they are. wide appends a character beyond the first
// 65536.
func escapeEncoded(encoded []byte, wide func([]byte, rune) []byte) []byte {
	out := make([]byte, 0, len(encoded))
	scan := newScanner()
	for len(encoded) > 0 {
		r, n := utf8.DecodeRune(encoded)
		switch safe := scan.safe(r); {
		case safe || r == '\n':
			out = append(out, encoded[:n]...)
		case r > 0xffff:
			out = wide(out, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		encoded = encoded[n:]
	}
	return out
}
