package check

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxRange bounds the text of a range: it is printed with every result.
const maxRange = 40

// Range tells which numbers are worth an alert, in the syntax of Nagios plugins.
// The zero Range alerts for none.
type Range struct {
	text       string
	start, end float64
	inside     bool
}

// ParseRange reads [@][START:][END]. Numbers outside START to END alert, with @
// those inside; both ends belong to the range. START is 0 where left out and ~
// for no lower end; END left out behind a colon means no upper end. The empty
// text is the zero Range.
func ParseRange(text string) (Range, error) {
	if text == "" {
		return Range{}, nil
	}
	if len(text) > maxRange {
		return Range{}, fmt.Errorf("range: more than %d characters", maxRange)
	}
	bounds, inside := strings.CutPrefix(text, "@")
	start, end, both := strings.Cut(bounds, ":")
	if !both {
		start, end = "", bounds
	}
	r := Range{text: text, inside: inside, end: math.Inf(1)}
	var err error
	switch {
	case start == "~":
		r.start = math.Inf(-1)
	case start != "":
		r.start, err = number(start)
	}
	if err == nil && (end != "" || !both) {
		r.end, err = number(end)
	}
	if err != nil {
		return Range{}, fmt.Errorf("range %q: %w", text, err)
	}
	if r.start > r.end {
		return Range{}, fmt.Errorf("range %q: begins above its end", text)
	}
	return r, nil
}

// number reads digits with a sign and a fraction, and none of the other forms
// that Go knows: they would mean something else to other readers of a range.
func number(s string) (float64, error) {
	if s == "" || strings.Trim(s, "-.0123456789") != "" {
		return 0, fmt.Errorf("%q is no number", s)
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", s)
	}
	return n, nil
}

// Alerts tells whether n is worth an alert.
func (r Range) Alerts(n float64) bool {
	if r.text == "" {
		return false
	}
	within := r.start <= n && n <= r.end
	return within == r.inside
}

// String returns the range as it was given.
func (r Range) String() string { return r.text }
