package config

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns every key with its effective value, in the order of config.example.yaml, as a file that Load reads back; only a
// password is replaced by "<redacted>", which Load refuses.
func (c Config) YAML() ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	sections := map[string]*yaml.Node{"": root}
	for _, k := range c.keys() {
		var v yaml.Node
		if err := v.Encode(k.show()); err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		parent, last := section(sections, k.name)
		parent.Content = append(parent.Content, scalar(last), &v)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return b.Bytes(), nil
}

// section returns the mapping that holds a dotted name, made where it was missing, and the name's last segment.
func section(sections map[string]*yaml.Node, name string) (parent *yaml.Node, last string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return sections[""], name
	}
	path := name[:i]
	if sections[path] == nil {
		above, own := section(sections, path)
		sections[path] = &yaml.Node{Kind: yaml.MappingNode}
		above.Content = append(above.Content, scalar(own), sections[path])
	}
	return sections[path], name[i+1:]
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
