package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns every key with its effective value, in the order of config.example.yaml, as a file that Load reads back; only a
// password is replaced by "<redacted>", which Load refuses.
func (c Config) YAML() ([]byte, error) {
	nodes := map[string]*yaml.Node{"": {Kind: yaml.MappingNode}}
	for _, k := range c.keys() {
		n, err := k.node()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		insert(nodes, k.name, n)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(nodes[""]), enc.Close()); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return b.Bytes(), nil
}

// insert adds a node under its dotted name, and the sections that are missing on the way. A policy is an element of the list of policies.
func insert(nodes map[string]*yaml.Node, name string, n *yaml.Node) {
	nodes[name] = n
	if strings.HasSuffix(name, "]") {
		list := nodes[policiesKey]
		list.Content = append(list.Content, n)
		return
	}
	i := strings.LastIndexByte(name, '.')
	section := name[:max(i, 0)]
	if nodes[section] == nil {
		insert(nodes, section, &yaml.Node{Kind: yaml.MappingNode})
	}
	nodes[section].Content = append(nodes[section].Content, scalar(name[i+1:]), n)
}

// node returns the value as the file has it, without a secret.
func (k key) node() (*yaml.Node, error) {
	var n yaml.Node
	switch p := k.place.(type) {
	case *bool, *int, *float64:
		return scalar(k.String()), nil // yaml would write 1e+06
	case *[]Policy:
		return &yaml.Node{Kind: yaml.SequenceNode}, nil
	case *[]string, *Secret:
		return &n, n.Encode(p)
	}
	return &n, n.Encode(k.String())
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
