package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// encodeJSON returns a value as JSON, its lines but the first indented by prefix.
func encodeJSON(v any, prefix string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return terminal.EscapeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// encodeYAML returns a value as YAML with the names, the order and the omissions that
// it has in JSON.
func encodeYAML(v any) ([]byte, error) {
	encoded, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(encoded))
	dec.UseNumber()
	node, err := toNode(dec)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return nil, err
	}
	err = enc.Close()
	return terminal.EscapeJSON(b.Bytes()), err
}

// toNode reads the next value of JSON.
func toNode(dec *json.Decoder) (*yaml.Node, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		kind := yaml.MappingNode
		if t == '[' {
			kind = yaml.SequenceNode
		}
		return toCollection(dec, &yaml.Node{Kind: kind})
	case string:
		return toScalar(t), nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: t.String()}, nil
	default: // true, false, null
		n := &yaml.Node{}
		return n, n.Encode(t)
	}
}

func toCollection(dec *json.Decoder, n *yaml.Node) (*yaml.Node, error) {
	for dec.More() {
		child, err := toNode(dec)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, child)
	}
	_, err := dec.Token() // the end
	return n, err
}

// toScalar prints lines as lines where that says what they are, and in quotes, where all
// can be escaped, what is not clean; also what begins with white space, which the
// library writes in a way that it does not read.
func toScalar(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	n.Tag = "!!str"
	raw := func(r rune) bool { return r != '\n' && r != '\t' && !terminal.Printable(r) }
	if strings.ContainsFunc(s, raw) || strings.IndexAny(s, " \t\n") == 0 || old(s) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// old tells whether YAML 1.1, which many still read, takes text for a boolean or a
// value, or for a number to the base 60.
func old(s string) bool {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "=", "<<":
		return true
	}
	return strings.Contains(s, ":") && strings.Trim(s, "+-0123456789_:.") == ""
}

// list writes {"locks": […]}, value by value.
type list struct {
	w      io.Writer
	format Format
	n      int
}

func (l *list) add(v any) error {
	l.n++
	if l.format == YAML {
		return l.addYAML(v)
	}
	begin := ",\n    "
	if l.n == 1 {
		begin = "{\n  \"locks\": [\n    "
	}
	encoded, err := encodeJSON(v, "    ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.w, "%s%s", begin, encoded)
	return err
}

func (l *list) addYAML(v any) error {
	if l.n == 1 {
		if _, err := io.WriteString(l.w, "locks:\n"); err != nil {
			return err
		}
	}
	encoded, err := encodeYAML([]any{v})
	if err != nil {
		return err
	}
	_, err = l.w.Write(encoded)
	return err
}

func (l *list) end() error {
	rest := "\n  ]\n}\n"
	switch {
	case l.format == YAML && l.n == 0:
		rest = "locks: []\n"
	case l.format == YAML:
		rest = ""
	case l.n == 0:
		rest = "{\n  \"locks\": []\n}\n"
	}
	_, err := io.WriteString(l.w, rest)
	return err
}
