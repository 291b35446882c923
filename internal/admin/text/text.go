// Package text makes fit for a terminal what stands in etcd.
//
// Guaranteed of what Quote, Escape and Cut return: no control character, escape
// sequence, change of direction, invisible character or invalid byte is in it raw, and
// Unquote gives back what Quote was given. Not guaranteed: that two names that look the
// same are the same, as letters of different scripts may.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Shows tells whether a terminal shows a character as what it is, in its place. Control
// characters, changes of direction and most that nobody sees are not printable; letters
// and marks that nobody sees either are listed by Unicode apart from those.
func Shows(r rune) bool {
	const blankBraille = '\u2800'
	if r < utf8.RuneSelf { // most are
		return ' ' <= r && r <= '~'
	}
	return unicode.IsPrint(r) && r != blankBraille && !unicode.Is(unicode.Variation_Selector, r) &&
		!unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// maxMarks is how many marks a letter may carry: scripts need few, and more of them grow
// into the lines above and below.
const maxMarks = 3

// Clean tells whether text can be printed as it is.
func Clean(s string) bool {
	marks := maxMarks // none without a letter
	for i, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD") || !Shows(r) {
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

// Quote returns text as it is, or in quotes and escaped where that would not show what
// it is. All that begins with a quote was quoted.
func Quote(s string) string {
	if Clean(s) && !strings.HasPrefix(s, `"`) && strings.TrimSpace(s) == s && s != "" {
		return s
	}
	return Quoted(s)
}

// Quoted is Quote, with quotes always.
func Quoted(s string) string { return `"` + Escape(s) + `"` }

// Unquote gives back what Quote was given; text that begins with a quote and is not of
// Quote's making, as it is.
func Unquote(s string) string {
	if strings.HasPrefix(s, `"`) {
		if plain, err := strconv.Unquote(s); err == nil {
			return plain
		}
	}
	return s
}

// Escape writes as in a string of Go whatever a terminal does not show as what it is.
func Escape(s string) string {
	var b strings.Builder
	marks := maxMarks
	for i, r := range s {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case Shows(r) && marks <= maxMarks:
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

// Columns returns how wide a terminal shows clean text.
func Columns(s string) (n int) {
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
		return 2
	}
	return 1
}

// Cut shortens clean text to at most so many columns, with an ellipsis for the rest.
func Cut(s string, most int) string {
	if len(s) <= most || Columns(s) <= most {
		return s
	}
	n := 0
	for i, r := range s {
		if n += runeColumns(r); n > most-1 {
			return s[:i] + "…"
		}
	}
	return s
}
