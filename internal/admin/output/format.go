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
	"math"
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

func parseTemplate(f Format) (*jsonpath.JSONPath, error) {
	text := strings.TrimPrefix(string(f), jsonPath)
	if !strings.Contains(text, "{") {
		return nil, errors.New("a template has its paths in braces, as in jsonpath='{.name}'")
	}
	template := jsonpath.New("template").AllowMissingKeys(true)
	return template, template.Parse(text)
}

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

// limit returns how many columns a cell has that would have so many in a table which is not Wide.
func (f Format) limit(columns int) int {
	if f == Wide {
		return 120
	}
	return columns
}

// column is a column of a table. A cell takes at most limit columns of the terminal.
type column[T any] struct {
	title string
	limit int
	cell  func(*T) string
	color func(*T) terminal.Color // nil for none
}

func newColumn[T any](title string, limit int, cell func(*T) string) column[T] {
	return column[T]{title: title, limit: limit, cell: cell}
}

type table[T any] struct {
	columns []column[T]
	widths  []int
	gap     int
	headers bool
}

func newTable[T any](columns []column[T], headers bool) *table[T] {
	t := &table[T]{columns, make([]int, len(columns)), 3, headers}
	for i, c := range columns {
		if headers {
			t.widths[i] = len(c.title)
		}
	}
	return t
}

// print reads all rows a first time for the widths. Without rows it prints no titles. more, if it is
// not nil, prints what follows a row.
func (t *table[T]) print(w *bufio.Writer, rows iter.Seq[T], more func(*T)) {
	empty := true
	for r := range rows {
		empty = false
		t.fit(&r)
	}
	if t.headers && !empty {
		fmt.Fprintln(w, t.titles(unbounded))
	}
	for r := range rows {
		fmt.Fprintln(w, t.row(&r, unbounded))
		if more != nil {
			more(&r)
		}
	}
}

func (t *table[T]) fit(r *T) {
	for i, c := range t.columns {
		t.widths[i] = max(t.widths[i], terminal.Columns(terminal.Truncate(c.cell(r), c.limit)))
	}
}

func (t *table[T]) titles(limit int) string {
	return t.line(limit, func(c column[T]) (string, terminal.Color) { return c.title, terminal.Plain })
}

func (t *table[T]) row(r *T, limit int) string {
	return t.line(limit, func(c column[T]) (string, terminal.Color) {
		color := terminal.Plain
		if c.color != nil {
			color = c.color(r)
		}
		return terminal.Truncate(c.cell(r), c.limit), color
	})
}

// narrow drops columns by their titles, one after the other, until a row fits.
func (t *table[T]) narrow(limit int, titles ...string) {
	for _, title := range titles {
		width := -t.gap
		for _, w := range t.widths {
			width += w + t.gap
		}
		i := slices.IndexFunc(t.columns, func(c column[T]) bool { return c.title == title })
		if width <= limit {
			return
		}
		t.columns, t.widths = slices.Delete(t.columns, i, i+1), slices.Delete(t.widths, i, i+1)
	}
}

// unbounded is a limit for what is not cut off.
const unbounded = math.MaxInt

// line returns a line of at most limit columns.
func (t *table[T]) line(limit int, cell func(column[T]) (string, terminal.Color)) string {
	var b strings.Builder
	for i, c := range t.columns {
		text, color := cell(c)
		text = terminal.Truncate(text, limit)
		b.WriteString(terminal.Paint(text, color))
		pad := t.widths[i] - terminal.Columns(text) + t.gap
		if limit -= t.widths[i] + t.gap; limit <= 0 || i == len(t.columns)-1 {
			break
		}
		b.WriteString(strings.Repeat(" ", max(0, pad)))
	}
	return b.String()
}
