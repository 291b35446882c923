// Package terminal makes text from etcd, from servers and from command lines safe to
// print, formats times and durations, and draws on terminals. All commands and the API use it.
//
// Guaranteed: in what the functions for text return there is no control character but the
// line ends that Text and the encodings keep, no escape sequence, no bidirectional override, no
// invisible character and no invalid byte, and Unquote returns what Quote was given.
// Not guaranteed: that two names that look the same are the same, since letters of
// different scripts may look alike. The length is bounded by Truncate only.
package terminal

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/width"
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

// Unquote returns what Quote was given. Text that is not a quoted string is returned unchanged.
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
		case safe:
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// Color is a color of the 16 that the user of the terminal has chosen.
type Color string

// The colors.
const (
	Plain   Color = ""
	Red     Color = "\x1b[1;31m"
	Yellow  Color = "\x1b[33m"
	Magenta Color = "\x1b[35m"
	Green   Color = "\x1b[32m"
)

// Paint returns safe text in a color.
func Paint(s string, c Color) string {
	if c == Plain {
		return s
	}
	return string(c) + s + "\x1b[0m"
}

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

// escapeEncoded leaves line ends as they are. wide appends a character beyond the first 65536.
func escapeEncoded(encoded []byte, wide func([]byte, rune) []byte) []byte {
	if !slices.ContainsFunc(encoded, func(b byte) bool { return b != '\n' && (b < ' ' || b > '~') }) {
		return encoded // the common case
	}
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

// Time formats an instant in UTC, to the second.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Relative formats the distance of an instant from now, such as "in 3m12s" or "12s ago".
func Relative(t, now time.Time) string {
	switch d := Duration(t.Sub(now)); {
	case d == "0s":
		return "now"
	case d[0] == '-':
		return d[1:] + " ago"
	default:
		return "in " + d
	}
}

// Clock says how far a clock is off, where seconds is by how much it is ahead.
func Clock(seconds float64) string {
	off, direction := time.Duration(seconds*float64(time.Second)), "fast"
	if off < 0 {
		off, direction = -off, "slow"
	}
	if off < time.Minute {
		return off.Round(time.Second/10).String() + " " + direction
	}
	return Duration(off) + " " + direction
}

// Duration formats a duration, rounded to the second, in its two largest units.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	sign := ""
	if d = d.Round(time.Second); d < 0 {
		sign, d = "-", -max(d, -math.MaxInt64)
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%s%ds", sign, d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%s%dm%02ds", sign, d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%s%dh%02dm", sign, d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%s%dd%02dh", sign, d/day, d%day/time.Hour)
}
