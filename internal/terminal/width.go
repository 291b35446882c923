package terminal

import (
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Columns returns the number of columns in which a terminal shows safe text.
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

// Truncate shortens safe text to at most limit columns, the last of which is an ellipsis
// where text was cut off.
func Truncate(s string, limit int) string {
	if len(s) <= limit || Columns(s) <= limit {
		return s
	}
	n := 0
	for i, r := range s {
		if n += runeColumns(r); n > limit-1 {
			return s[:i] + "…"
		}
	}
	return s
}
