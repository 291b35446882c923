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

// Formats returns the names of all formats.
func Formats() []string {
	return []string{string(Table), string(Wide), string(JSON), string(YAML), string(Name)}
}

// Set implements pflag.Value.
func (f *Format) Set(s string) error {
	for _, known := range Formats() {
		if s == known {
			*f = Format(s)
			return nil
		}
	}
	return fmt.Errorf("want %s", strings.Join(Formats(), ", "))
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "format" }
