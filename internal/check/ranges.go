package check

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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
	if s == "" || strings.Trim(s, "-.0123456789") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return n, nil
}

// Alerts reports whether the range alerts on n.
func (r Range) Alerts(n float64) bool {
	if r.text == "" {
		return false
	}
	within := r.start <= n && n <= r.end
	return within == r.inside
}

// String returns the range as it was given.
func (r Range) String() string { return r.text }
