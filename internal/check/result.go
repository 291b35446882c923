package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// State is what a plugin's exit code tells.
type State int

// The states, with their exit codes.
const (
	OK State = iota
	Warning
	Critical
	Unknown
)

// String returns the state as plugins print it.
func (s State) String() string {
	switch s {
	case OK:
		return "OK"
	case Warning:
		return "WARNING"
	case Critical:
		return "CRITICAL"
	}
	return "UNKNOWN"
}

// weight orders states by how much they matter: what is known to be bad is worse
// than what is not known.
func (s State) weight() int {
	return [...]int{OK: 0, Unknown: 1, Warning: 2, Critical: 3}[s]
}

// Result is what a plugin says.
type Result struct {
	State State
	// Text is the rest of the first line, before it is cut.
	Text string
	// Long are the lines below it.
	Long []string

	data []datum
}

// Misused is the Result for a command line that makes no sense.
func Misused(err error) Result {
	return Result{State: Unknown, Text: clean(err.Error(), maxText)}
}

// String returns the output of the plugin, with a line end. The numbers stand in
// the first line, so that no cut behind it loses them.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "UNLOCKER %s: %s", r.State, clip(r.Text, maxText))
	for i, d := range r.data {
		if i == 0 {
			b.WriteString(" |")
		}
		b.WriteString(" " + d.String())
	}
	b.WriteByte('\n')
	const room = 40 // for the line that tells what is missing
	for i, line := range r.Long {
		if b.Len()+len(line) > maxOutput-room {
			fmt.Fprintf(&b, "and %s\n", count(len(r.Long)-i, "more line"))
			break
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// datum is a number for graphs; all have 0 as their least value.
type datum struct {
	label      string
	value      int
	unit       string
	warn, crit Range
}

func (d datum) String() string {
	return fmt.Sprintf("%s=%d%s;%s;%s;0", d.label, d.value, d.unit, d.warn, d.crit)
}

// finding is one thing that a judgement says, and how bad it is.
type finding struct {
	state State
	text  string
}

// sum makes one text of all findings, the worst first.
func sum(findings []finding) (worst State, text string) {
	ordered := slices.Clone(findings)
	slices.SortStableFunc(ordered, func(a, b finding) int { return cmp.Compare(b.state.weight(), a.state.weight()) })
	texts := make([]string, len(ordered))
	for i, f := range ordered {
		texts[i] = f.text
	}
	return ordered[0].state, strings.Join(texts, "; ")
}
