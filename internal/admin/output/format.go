// Package output prints locks for people and programs.
//
// Guaranteed: all text from etcd is printed through package terminal, and output for
// people is bounded. JSON and YAML stay valid: escapes follow the format, so that readers
// get the original text. Not guaranteed: the layout of tables and of YAML.
package output

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
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

// printData prints one value as JSON or YAML.
func printData(w *bufio.Writer, f Format, v any) error {
	encoded, err := encode(f, v)
	fmt.Fprintf(w, "%s\n", encoded)
	return err
}

// printList prints {"locks": […]} as JSON or YAML, lock by lock.
func printList(w *bufio.Writer, f Format, locks iter.Seq[api.Lock]) error {
	begin, between, indent, end, empty := "locks:\n- ", "\n- ", "\n  ", "\n", "locks: []\n"
	if f == JSON {
		begin, between, indent, end, empty = "{\n  \"locks\": [\n    ", ",\n    ", "\n    ", "\n  ]\n}\n", "{\n  \"locks\": []\n}\n"
	}
	before, after := begin, empty
	for l := range locks {
		encoded, err := encode(f, l)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s%s", before, bytes.ReplaceAll(encoded, []byte("\n"), []byte(indent)))
		before, after = between, end
	}
	fmt.Fprint(w, after)
	return nil
}

// encode returns a value as JSON or YAML, without the last line end.
func encode(f Format, v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	encoded := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if f == JSON {
		return terminal.EscapeJSON(encoded), nil
	}
	encoded = terminal.EscapeYAML(encoded)
	block, err := yaml.JSONToYAML(encoded)
	if err == nil && !bytes.Equal(block, terminal.EscapeYAML(block)) {
		// The library unescapes some characters that are not safe to print. JSON, where
		// they stay escaped, is YAML too.
		return encoded, nil
	}
	return bytes.TrimSuffix(block, []byte("\n")), err
}
