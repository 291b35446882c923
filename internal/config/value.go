package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// kind is the type of a key: as --help shows it, and what the file may contain for it, in words and as YAML tags.
type kind struct{ name, wants, tags string }

func (k key) kind() kind {
	switch k.place.(type) {
	case *bool:
		return kind{"bool", "true or false", "!!bool"}
	case *int:
		return kind{"int", "a whole number", "!!int"}
	case *float64:
		return kind{"number", "a number", "!!int !!float"}
	case *time.Duration: // numbers are accepted only to be refused with the reason: a bare 10 would be nanoseconds
		return kind{"duration", "a duration such as 10s", "!!str !!int !!float"}
	case *[]string:
		return kind{"strings", "a list of strings", "!!str"}
	case *[]Policy:
		return kind{"policies", "a list of mappings", ""}
	}
	return kind{"string", "a string", "!!str"}
}

// Type makes a key, with String and Set, a pflag.Value.
func (k key) Type() string { return k.kind().name }

// String returns what Set reads back; it reveals a secret.
func (k key) String() string {
	switch p := k.place.(type) {
	case *float64:
		return strconv.FormatFloat(*p, 'f', -1, 64)
	case *time.Duration:
		return formatDuration(*p)
	case *[]string:
		return strings.Join(*p, ",")
	case *Secret:
		return p.Reveal()
	case *[]Policy:
		return ""
	}
	return fmt.Sprint(reflect.ValueOf(k.place).Elem())
}

// Set parses a value, which is written the same way in a flag, a variable and a scalar of the file.
func (k key) Set(text string) (err error) {
	switch p := k.place.(type) {
	case *bool:
		if *p, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case *int:
		*p, err = parseDecimal(text, "a whole number", strconv.Atoi)
	case *float64:
		*p, err = parseDecimal(text, "a number", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	case *time.Duration:
		if *p, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%q is not a duration with a unit, such as 10s, 5m or 1h30m", text)
		}
	case *[]string:
		*p = regexp.MustCompile(`\s*,\s*`).Split(strings.TrimSpace(text), -1)
	case *Secret:
		*p = NewSecret(text)
	case *string:
		*p = text
	}
	return err
}

// formatDuration writes 1h instead of 1h0m0s.
func formatDuration(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// parseDecimal refuses 010, 0x10, 1_000 and 1e3: they mean one thing in YAML and another, or nothing, in a shell.
func parseDecimal[T any](s, what string, parse func(string) (T, error)) (T, error) {
	n, err := parse(s)
	plain := regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`).MatchString(s)
	switch {
	case plain && errors.Is(err, strconv.ErrRange):
		return n, fmt.Errorf("%q is too large", s)
	case !plain || err != nil:
		return n, fmt.Errorf("%q is not %s in plain decimal digits", s, what)
	}
	return n, nil
}
