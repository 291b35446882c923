package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable reports whether a terminal shows a character as itself and in its place. It
// is false for control characters, bidirectional controls and invisible characters.
// Unicode counts some invisible letters and marks as printable: they are excluded here.
func Printable(r rune) bool {
	const blankBraille = '\u2800'
	if r < utf8.RuneSelf { // the common case
		return ' ' <= r && r <= '~'
	}
	return unicode.IsPrint(r) && r != blankBraille && !unicode.Is(unicode.Variation_Selector, r) &&
		!unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// maxMarks is the maximum number of combining marks on a letter. Scripts need few; more
// of them are drawn over the lines above and below.
const maxMarks = 3

// clean reports whether one line of text can be printed unchanged.
func clean(s string) bool {
	marks := maxMarks // a mark needs a letter before it
	for i, r := range s {
		if invalid(s[i:], r) || !Printable(r) {
			return false
		}
		if !unicode.Is(unicode.M, r) {
			marks = 0
		} else if marks++; marks > maxMarks {
			return false
		}
	}
	return true
}

// invalid reports whether r, the first character of s, stands for a byte that is not UTF-8.
func invalid(s string, r rune) bool { return r == utf8.RuneError && !strings.HasPrefix(s, "\uFFFD") }

// Text returns text of one or more lines in which every line that is not safe to print
// is escaped, as in a Go string.
func Text(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if !clean(line) {
			lines[i] = escape(line)
		}
	}
	return strings.Join(lines, "\n")
}

// Quote returns text unchanged, or quoted and escaped as in a Go string where it is not
// safe to print, is empty, or begins or ends with a space. Whatever it returns that
// begins with a quote has been quoted.
func Quote(s string) string {
	if clean(s) && !strings.HasPrefix(s, `"`) && strings.TrimSpace(s) == s && s != "" {
		return s
	}
	return QuoteAlways(s)
}

// QuoteAlways returns text quoted and escaped as in a Go string.
func QuoteAlways(s string) string { return `"` + escape(s) + `"` }

// Unquote returns what Quote was given. Text that is not a quoted string is returned
// unchanged.
func Unquote(s string) string {
	if strings.HasPrefix(s, `"`) {
		if plain, err := strconv.Unquote(s); err == nil {
			return plain
		}
	}
	return s
}

func escape(s string) string {
	var b strings.Builder
	marks := maxMarks
	for i, r := range s {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case invalid(s[i:], r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case Printable(r) && marks <= maxMarks:
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
