package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable reports whether a terminal shows a character as itself and in its place. It
// is false for control characters, bidirectional controls and invisible characters.
// Unicode counts some invisible letters and marks as printable: they are excluded here.
func printable(r rune) bool {
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

// scanner reports of one character after the other whether it is safe to print. marks
// counts those since the last letter, which a line needs before its first mark.
type scanner struct{ marks int }

func newScanner() scanner { return scanner{marks: maxMarks} }

func (s *scanner) safe(r rune) bool {
	switch {
	case r < utf8.RuneSelf || !unicode.Is(unicode.M, r):
		s.marks = 0
	case s.marks >= maxMarks:
		return false
	default:
		s.marks++
	}
	return printable(r)
}

// invalid reports whether r, the first character of s, stands for a byte that is not UTF-8.
func invalid(s string, r rune) bool { return r == utf8.RuneError && !strings.HasPrefix(s, "\uFFFD") }

// clean reports whether one line of text can be printed unchanged.
func clean(s string) bool {
	scan := newScanner()
	for i, r := range s {
		if invalid(s[i:], r) || !scan.safe(r) {
			return false
		}
	}
	return true
}

// Strip returns text without the characters that are not safe to print.
func Strip(s string) string {
	scan := newScanner()
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !scan.safe(r) {
			return -1
		}
		return r
	}, s)
}

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
	scan := newScanner()
	for i, r := range s {
		switch safe := scan.safe(r); {
		case invalid(s[i:], r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case safe:
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
