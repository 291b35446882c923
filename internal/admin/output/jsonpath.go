package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/util/jsonpath"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

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

// String implements fmt.Stringer.
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
