package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileSize is far above any configuration; it keeps a mistaken path from filling the memory.
const maxFileSize = 1 << 20

// written is a value of the file on its way through viper.
type written struct {
	text   string // as the key's kind parses it
	origin string // file:line
}

// readFile reads and parses one file.
func readFile(path string) (map[string]any, error) {
	b, err := readAll(path)
	if err != nil {
		return nil, err
	}
	return parseFile(path, b)
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer f.Close() // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if len(b) > maxFileSize {
		return nil, fmt.Errorf("%s: larger than 1 MiB: this is no configuration", path)
	}
	return b, nil
}

// parseFile returns the file's settings by dotted name. It is strict where viper is not: exact names, no key twice, one document, right types.
func parseFile(path string, data []byte) (map[string]any, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return map[string]any{}, nil
	} else if err != nil {
		return nil, syntaxError(path, err)
	}
	if err := dec.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s:%d: a second YAML document: there must be only one", path, second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(path, err)
	}
	r := reader{path: path, keys: map[string]key{}, settings: map[string]any{}}
	var c Config
	for _, k := range c.keys() {
		r.keys[k.name] = k
	}
	if err := r.top(&doc); err != nil {
		return nil, err
	}
	return r.settings, nil
}

// reader walks the nodes of one file.
type reader struct {
	path     string
	keys     map[string]key
	settings map[string]any
}

func (r reader) top(doc *yaml.Node) error {
	n := doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		n = doc.Content[0]
	}
	if n.Kind != yaml.MappingNode && !isNull(n) {
		return fmt.Errorf("%s:%d: must be a mapping of keys to values, not %s", r.path, n.Line, describe(n))
	}
	return r.section("", n)
}

// section reads a mapping; a null is a section whose keys are all commented out.
func (r reader) section(name string, n *yaml.Node) error {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolve(n.Content[i+1])
		full := join(name, k)
		if first, ok := seen[k.Value]; ok {
			return r.refuse(k, full, fmt.Sprintf("given twice, first in line %d", first))
		}
		seen[k.Value] = k.Line
		if err := r.entry(full, k, v); err != nil {
			return err
		}
	}
	return nil
}

func (r reader) entry(name string, k, v *yaml.Node) error {
	known, isKey := r.keys[name]
	switch {
	case strings.Contains(k.Value, "."):
		return r.refuse(k, name, "unknown key: write one section for each part before a dot")
	case k.Kind != yaml.ScalarNode || !isKey && !r.isSection(name):
		return r.refuse(k, name, "unknown key")
	case isKey:
		return r.leaf(known, k, v)
	case v.Kind != yaml.MappingNode && !isNull(v):
		return r.refuse(k, name, "must be a mapping, not "+describe(v))
	}
	return r.section(name, v)
}

// leaf takes the text of a value whose type is right; the kind parses it, as it does text from a flag.
func (r reader) leaf(known key, k, v *yaml.Node) error {
	if isNull(v) {
		return r.refuse(k, known.name, "has no value: write one, or leave the key out")
	}
	values := []*yaml.Node{v}
	if known.shape.list {
		values = v.Content
	}
	if known.shape.list != (v.Kind == yaml.SequenceNode) {
		return r.refuse(k, known.name, "must be "+known.shape.wants+", not "+describe(v))
	}
	if known.shape.mappings {
		return r.elements(known, k, v)
	}
	texts := make([]string, 0, len(values))
	for _, n := range values {
		n = resolve(n)
		if n.Kind != yaml.ScalarNode || !slices.Contains(known.shape.tags, n.ShortTag()) {
			return r.refuse(k, known.name, "must be "+known.shape.wants+", not "+describe(n)+quoteHint(known.shape, n))
		}
		if known.shape.list && strings.Contains(n.Value, ",") {
			return r.refuse(k, known.name, "an element of the list must not contain a comma")
		}
		texts = append(texts, n.Value)
	}
	r.set(known.name, k, strings.Join(texts, ","))
	return nil
}

// elements reads a list of policies, each as a section with keys of its own: no other section may take their names.
func (r reader) elements(known key, k, v *yaml.Node) error {
	for i, n := range v.Content {
		at, n := policyName(i), resolve(n)
		if n.Kind != yaml.MappingNode {
			return r.refuse(n, at, "must be a mapping, not "+describe(n))
		}
		own := reader{path: r.path, keys: map[string]key{}, settings: r.settings}
		for _, k := range new(Policy).keys(at) {
			own.keys[k.name] = k
		}
		if err := own.section(at, n); err != nil {
			return err
		}
		if _, given := r.settings[at+".match"]; !given {
			return r.refuse(n, at+".match", "is missing: a policy needs the names it is for")
		}
	}
	r.set(known.name, k, strconv.Itoa(len(v.Content)))
	return nil
}

func (r reader) set(name string, at *yaml.Node, text string) {
	r.settings[name] = written{text, fmt.Sprintf("%s:%d", r.path, at.Line)}
}

func (r reader) isSection(name string) bool {
	for known := range r.keys {
		if strings.HasPrefix(known, name+".") {
			return true
		}
	}
	return false
}

func (r reader) refuse(at *yaml.Node, name, why string) error {
	return fmt.Errorf("%s:%d: %s: %s", r.path, at.Line, name, why)
}
