package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// State is the state of a service. Its value is the exit code of a plugin.
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
	return [...]string{OK: "OK", Warning: "WARNING", Critical: "CRITICAL", Unknown: "UNKNOWN"}[s]
}

// weight orders states by severity: a known problem is worse than an unknown state.
func (s State) weight() int {
	return [...]int{OK: 0, Unknown: 1, Warning: 2, Critical: 3}[s]
}

// Result is the result of a check.
type Result struct {
	State State
	// Text follows the state in the first line, where it is truncated.
	Text string
	// Long are the further lines.
	Long []string

	data []datum
}

// Misused returns the Result of a wrong command line.
func Misused(err error) Result {
	return Result{State: Unknown, Text: clean(err.Error(), maxText)}
}

// String returns the output of the plugin, with a line end. The performance data is in the
// first line, so that truncation does not lose it.
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
	const room = 40 // for the line that counts the omitted lines
	for i, line := range r.Long {
		if b.Len()+len(line) > maxOutput-room {
			fmt.Fprintf(&b, "and %s\n", count(len(r.Long)-i, "more line"))
			break
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// datum is a number of the performance data. Its minimum is 0.
type datum struct {
	label      string
	value      int
	unit       string
	warn, crit Range
}

func (d datum) String() string {
	return fmt.Sprintf("%s=%d%s;%s;%s;0", d.label, d.value, d.unit, d.warn, d.crit)
}

type finding struct {
	state State
	text  string
}

// sum joins the findings, the worst first.
func sum(findings []finding) (worst State, text string) {
	slices.SortStableFunc(findings, func(a, b finding) int { return cmp.Compare(b.state.weight(), a.state.weight()) })
	texts := make([]string, len(findings))
	for i, f := range findings {
		texts[i] = f.text
	}
	return findings[0].state, strings.Join(texts, "; ")
}

// unsafe are the characters with a meaning in the output of a plugin, or in the shells and
// web pages that receive it: the illegal_macro_output_chars of Nagios, and the backslash,
// which some readers expand in "\n".
const unsafe = "|`~$&'\"<>\\"

// Limits in bytes. The first line stays below 1 KiB, which is all that NRPE 2 forwards;
// Nagios reads 8 KiB.
const (
	maxName        = 100
	maxReason      = 200
	maxExplanation = 400
	maxText        = 480
	maxOutput      = 8000
)

// clean makes untrusted text safe for the output of a plugin, and bounds it.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case strings.ContainsRune(unsafe, r):
			return -1
		}
		return r
	}, s)
	return clip(terminal.Strip(s), limit)
}

// clip cuts text off after limit bytes, between characters, and marks the cut.
func clip(s string, limit int) string { return protocol.Clip([]byte(s), limit) }

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// list joins the first names and counts the others.
func list(all []string, total int) string {
	const inLine = 5 // the maximum number of names in the first line
	shown := all[:min(len(all), inLine)]
	text := strings.Join(shown, ", ")
	if more := total - len(shown); more > 0 && len(shown) > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// maxRange bounds the text of a range, in bytes: every result prints it.
const maxRange = 40

// Range is a range of numbers in the syntax of Nagios plugins, which alerts on the numbers
// outside of it. The zero Range never alerts.
type Range struct {
	text       string
	start, end float64
	inside     bool
}

// Set implements pflag.Value. It parses [@][START:][END]. Numbers below START or above END alert; with @, the
// others do. START is 0 if left out, and ~ stands for no lower end. END left out after a
// colon stands for no upper end. The empty text is the zero Range.
func (r *Range) Set(text string) (err error) {
	if text == "" {
		*r = Range{}
		return nil
	}
	if len(text) > maxRange {
		return fmt.Errorf("range: more than %d characters", maxRange)
	}
	bounds, inside := strings.CutPrefix(text, "@")
	start, end, both := strings.Cut(bounds, ":")
	if !both {
		start, end = "", bounds
	}
	parsed := Range{text: text, inside: inside, end: math.Inf(1)}
	switch {
	case start == "~":
		parsed.start = math.Inf(-1)
	case start != "":
		parsed.start, err = number(start)
	}
	if err == nil && (end != "" || !both) {
		parsed.end, err = number(end)
	}
	if err != nil {
		return fmt.Errorf("range %q: %w", text, err)
	}
	if parsed.start > parsed.end {
		return fmt.Errorf("range %q: start is greater than end", text)
	}
	*r = parsed
	return nil
}

// Type implements pflag.Value.
func (r *Range) Type() string { return "RANGE" }

// number parses digits with a sign and a fraction. It refuses the other forms that Go
// accepts, which other readers of a range do not understand.
func number(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || strings.Trim(s, "-.0123456789") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return n, nil
}

// Alerts reports whether the range alerts on n.
func (r Range) Alerts(n float64) bool {
	within := r.start <= n && n <= r.end
	return r.text != "" && within == r.inside
}

// String returns the range as it was given.
func (r Range) String() string { return r.text }
