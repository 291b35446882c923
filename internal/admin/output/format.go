package output

import (
	"fmt"
	"strings"
)

// Format is an output format. It implements pflag.Value.
type Format string

// The formats.
const (
	Table Format = "table" // for people
	Wide  Format = "wide"  // for people, with more columns and longer values
	JSON  Format = "json"
	YAML  Format = "yaml"
	Name  Format = "name" // only names, one per line
)

// formats returns the names of all formats but that of templates.
func formats() []string {
	return []string{string(Table), string(Wide), string(JSON), string(YAML), string(Name)}
}

// Set implements pflag.Value.
func (f *Format) Set(s string) error {
	if Format(s).hasTemplate() {
		*f = Format(s)
		_, err := parseTemplate(*f)
		return err
	}
	for _, known := range formats() {
		if s == known {
			*f = Format(s)
			return nil
		}
	}
	return fmt.Errorf("want %s", Choices())
}

// Choices returns what a format may be, for people.
func Choices() string { return strings.Join(append(formats(), jsonPath+"TEMPLATE"), ", ") }

// Completions returns how formats may begin, for shells.
func Completions() []string { return append(formats(), jsonPath) }

func (f Format) hasTemplate() bool { return strings.HasPrefix(string(f), jsonPath) }

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "format" }
