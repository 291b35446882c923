package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is a type of value: how it is read and written, the same way from every source.
type kind[T any] struct {
	name   string // as --help shows it
	shape  shape
	parse  func(string) (T, error)
	format func(T) string      // the inverse of parse
	show   func(T) any         // nil: format
	join   func(old, more T) T // nil: the last of several flags wins
}

// shape is what the YAML file may hold for a kind: a scalar with one of the tags, a list of them, or a list of mappings.
type shape struct {
	wants    string // "a duration such as 10s"
	tags     []string
	list     bool
	mappings bool
}

// bind makes a key of a place in a Config; check may be nil.
func bind[T any](kd kind[T], name string, p *T, def T, check func(T) error, help string) key {
	k := key{name: name, help: help, shape: kd.shape, value: &bound[T]{kind: kd, p: p}}
	k.reset = func() { *p = def }
	k.check = func() error {
		if check == nil {
			return nil
		}
		return check(*p)
	}
	k.show = func() any {
		if kd.show == nil {
			return kd.format(*p)
		}
		return kd.show(*p)
	}
	return k
}

// bound is a place in a Config as a pflag.Value.
type bound[T any] struct {
	kind[T]
	p     *T
	again bool
}

func (b *bound[T]) String() string { return b.format(*b.p) }
func (b *bound[T]) Type() string   { return b.name }

// Set replaces the default; a repeated flag adds to what the earlier ones gave, where the kind can.
func (b *bound[T]) Set(s string) error {
	v, err := b.parse(s)
	if err != nil {
		return err
	}
	if b.again && b.join != nil {
		v = b.join(*b.p, v)
	}
	*b.p, b.again = v, true
	return nil
}

func text() kind[string] {
	keep := func(s string) string { return s }
	return kind[string]{
		name:   "string",
		shape:  shape{wants: "a string", tags: []string{"!!str"}},
		parse:  func(s string) (string, error) { return s, nil },
		format: keep,
	}
}

func secret() kind[Secret] {
	return kind[Secret]{
		name:   "string",
		shape:  shape{wants: "a string", tags: []string{"!!str"}},
		parse:  func(s string) (Secret, error) { return NewSecret(s), nil },
		format: Secret.Reveal, // viper hands the flag's text over
		show:   func(s Secret) any { return s.String() },
	}
}

// duration takes numbers from the file only to refuse them with the reason: a bare 10 would be nanoseconds, which nobody means.
func duration() kind[time.Duration] {
	return kind[time.Duration]{
		name:   "duration",
		shape:  shape{wants: "a duration such as 10s", tags: []string{"!!str", "!!int", "!!float"}},
		parse:  parseDuration,
		format: formatDuration,
	}
}

func integer() kind[int] {
	return kind[int]{
		name:   "int",
		shape:  shape{wants: "a whole number", tags: []string{"!!int"}},
		parse:  parseInt,
		format: strconv.Itoa,
		show:   func(n int) any { return n },
	}
}

func number() kind[float64] {
	format := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	return kind[float64]{
		name:   "number",
		shape:  shape{wants: "a number", tags: []string{"!!int", "!!float"}},
		parse:  parseNumber,
		format: format,
		show:   func(f float64) any { return scalar(format(f)) }, // yaml would write 1e+06
	}
}

func boolean() kind[bool] {
	return kind[bool]{
		name:   "bool",
		shape:  shape{wants: "true or false", tags: []string{"!!bool"}},
		parse:  parseBool,
		format: strconv.FormatBool,
		show:   func(b bool) any { return b },
	}
}

func list() kind[[]string] {
	return kind[[]string]{
		name:   "strings",
		shape:  shape{wants: "a list of strings", tags: []string{"!!str"}, list: true},
		parse:  parseList,
		format: func(l []string) string { return strings.Join(l, ",") },
		show:   func(l []string) any { return l },
		join:   func(old, more []string) []string { return slices.Concat(old, more) },
	}
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if _, bare := strconv.ParseFloat(s, 64); bare == nil {
		return 0, fmt.Errorf("%q has no unit: write a duration such as 10s, 5m or 1h30m", s)
	}
	return 0, fmt.Errorf("%q is no duration: write one such as 10s, 5m or 1h30m", s)
}

// formatDuration writes 1h instead of 1h0m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseInt takes plain decimal digits: 010 and 1_000 mean one thing to YAML and another to the shell.
func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is too large", s)
	}
	if err != nil || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is no whole number in plain decimal digits", s)
	}
	return n, nil
}

// parseNumber takes plain decimal digits with a fraction or without, for the same reason.
func parseNumber(s string) (float64, error) {
	odd := func(r rune) bool { return !strings.ContainsRune("-.0123456789", r) }
	whole, _, _ := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	f, err := strconv.ParseFloat(s, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is too large", s)
	}
	if err != nil || strings.ContainsFunc(s, odd) || len(whole) > 1 && whole[0] == '0' {
		return 0, fmt.Errorf("%q is no number in plain decimal digits", s)
	}
	return f, nil
}

func parseBool(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", s)
	}
	return b, nil
}

func parseList(s string) ([]string, error) {
	if strings.TrimSpace(s) == "" {
		return []string{}, nil
	}
	l := strings.Split(s, ",")
	for i := range l {
		l[i] = strings.TrimSpace(l[i])
	}
	return l, nil
}
