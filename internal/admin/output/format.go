// Package output prints locks for people and programs.
//
// Guaranteed: all text from etcd is printed through package terminal, and output for
// people is bounded. JSON and YAML stay valid: escapes follow the format, so that readers
// get the original text. Not guaranteed: the layout of tables and of YAML.
package output

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
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
	if !slices.Contains(formats(), s) {
		return fmt.Errorf("want %s", Choices())
	}
	*f = Format(s)
	return nil
}

// Choices returns what a format may be, for people.
func Choices() string { return strings.Join(append(formats(), jsonPath+"TEMPLATE"), ", ") }

// Completions returns how formats may begin, for shells.
func Completions() []string { return append(formats(), jsonPath) }

func (f Format) hasTemplate() bool { return strings.HasPrefix(string(f), jsonPath) }

func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "format" }

// printAs prints data in a format: all of it, what a template selects, only the names, or a table.
func printAs(w io.Writer, f Format, names []string, data any, table func(*bufio.Writer)) (err error) {
	b := bufio.NewWriterSize(w, 64<<10)
	switch {
	case f.hasTemplate():
		err = printTemplate(b, f, data)
	case f == JSON, f == YAML:
		var encoded []byte
		encoded, err = encode(f, "  ", data)
		fmt.Fprintf(b, "%s\n", encoded)
	case f == Name:
		for _, name := range names {
			fmt.Fprintln(b, terminal.Quote(name))
		}
	default:
		table(b)
	}
	return cmp.Or(err, b.Flush()) // b keeps the first error of a write
}

// printList prints {"locks": […]} as JSON or YAML, lock by lock.
func printList(w *bufio.Writer, f Format, locks iter.Seq[api.Lock]) error {
	begin, between, indent, end, empty := "locks:\n- ", "\n- ", "\n  ", "\n", "locks: []\n"
	if f == JSON {
		begin, between, indent, end, empty = "{\n  \"locks\": [\n    ", ",\n    ", "\n    ", "\n  ]\n}\n", "{\n  \"locks\": []\n}\n"
	}
	before, after := begin, empty
	for l := range locks {
		encoded, err := encode(f, "  ", l)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s%s", before, bytes.ReplaceAll(encoded, []byte("\n"), []byte(indent)))
		before, after = between, end
	}
	fmt.Fprint(w, after)
	return nil
}

// encode returns a value as JSON, indented by a text, or as YAML, without the last line end.
func encode(f Format, indent string, v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
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

// jsonPath is how a format with a template begins.
const jsonPath = "jsonpath="

// parseTemplate returns the template of a format.
func parseTemplate(f Format) (*jsonpath.JSONPath, error) {
	text := strings.TrimPrefix(string(f), jsonPath)
	if !strings.Contains(text, "{") {
		return nil, errors.New("a template has its paths in braces, as in jsonpath='{.name}'")
	}
	template := jsonpath.New("template").AllowMissingKeys(true)
	return template, template.Parse(text)
}

// printTemplate prints what a template selects of the JSON of a value.
func printTemplate(w io.Writer, f Format, v any) error {
	template, err := parseTemplate(f)
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var decoded any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	if err := decoder.Decode(&decoded); err != nil {
		return err
	}
	if err := template.Execute(w, selectable(decoded)); err != nil {
		return fmt.Errorf("-o %s: %w", f, err)
	}
	return nil
}

// selectable converts decoded JSON to what templates compare and print: numbers are numbers,
// and strings are safe to print.
func selectable(v any) any {
	switch v := v.(type) {
	case string:
		return safe(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, _ := v.Float64()
		return n
	case map[string]any:
		for key, value := range v {
			v[key] = selectable(value)
		}
	case []any:
		for i, value := range v {
			v[i] = selectable(value)
		}
	}
	return v
}

// safe is a string that templates compare as it is, and print as it is safe.
type safe string

func (s safe) String() string {
	if s == "" {
		return ""
	}
	return terminal.Quote(string(s))
}

// MarshalJSON implements json.Marshaler, for objects and lists that a template selects.
func (s safe) MarshalJSON() ([]byte, error) {
	encoded, err := json.Marshal(string(s))
	return terminal.EscapeJSON(encoded), err
}
