package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// tone is how a line is meant, and so its colour.
type tone string

const (
	plain tone = ""
	good  tone = "32"
	warn  tone = "33"
	bad   tone = "31;1"
	faint tone = "2"
)

// The columns: seconds, who, what.
const (
	width    = 100
	whoWidth = 9
	indent   = 9 + whoWidth + 2
	label    = 9
)

// page lays lines out. Whatever it is given, only its own control characters
// reach the terminal: names and values in etcd are anybody's.
type page struct {
	out    io.Writer
	colour bool
	start  time.Time
	err    error // of the first write that failed; nothing is written after
}

// coloured tells whether out is a terminal that may be coloured.
func coloured(out io.Writer, env func(string) (string, bool)) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	if v, _ := env("NO_COLOR"); v != "" {
		return false
	}
	if v, _ := env("TERM"); v == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// say writes a line of the story, folded where it is long.
func (p *page) say(who, what string, t tone) {
	head := fmt.Sprintf("%5.1f s  %-*s  ", time.Since(p.start).Seconds(), whoWidth, clean(who))
	p.fold(head, what, t)
}

// detail writes a named value below a line.
func (p *page) detail(name, value string) {
	p.fold(fmt.Sprintf("%*s%-*s", indent, "", label, name), value, plain)
}

// text writes a line without columns.
func (p *page) text(what string) { p.fold("", what, plain) }

func (p *page) gap() { p.write("\n") }

// fold writes what behind head, the lines that follow below its beginning.
func (p *page) fold(head, what string, t tone) {
	margin := utf8.RuneCountInString(head)
	for i, line := range fold(clean(what), width-margin) {
		if i > 0 {
			head = strings.Repeat(" ", margin)
		}
		p.write(head + p.paint(line, t) + "\n")
	}
}

func (p *page) paint(s string, t tone) string {
	if !p.colour || t == plain || s == "" {
		return s
	}
	return "\x1b[" + string(t) + "m" + s + "\x1b[0m"
}

func (p *page) write(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.out, s)
	}
}

// fold breaks s at spaces into lines of no more runes than most; a longer word keeps
// a line of its own, so that a command can be copied.
func fold(s string, most int) []string {
	var lines []string
	line := ""
	for i, word := range strings.Split(s, " ") {
		switch {
		case i == 0:
			line = word
		case strings.TrimSpace(line) != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > most:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// clean makes everything visible that is not.
func clean(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}
