package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// join makes a dotted name; what could break the line of an error is quoted. After a colon nothing is repeated: a key such as "password:secret" is
// what a forgotten space makes of a key and its value.
func join(section string, k *yaml.Node) string {
	name, _, cut := strings.Cut(k.Value, ":")
	if cut {
		name += ":…"
	}
	if q := strconv.Quote(name); k.Kind != yaml.ScalarNode || q != `"`+name+`"` || name == "" {
		name = q
	}
	if section == "" {
		return name
	}
	return section + "." + name
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe names a node's type and never its value, which may be a secret.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "a string"
	case "!!int":
		return "a number"
	case "!!float":
		return "a number with a fraction"
	case "!!bool":
		return "a boolean"
	case "!!null":
		return "null"
	case "!!timestamp":
		return "a date"
	}
	return "a value of another type"
}

func quoteHint(s shape, n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && slices.Equal(s.tags, []string{"!!str"}) {
		return ": put it in quotes"
	}
	return ""
}

// syntaxError turns "yaml: line 3: …" into "file:3: …". An unknown anchor is not repeated: it is how an unquoted password beginning with * reads.
func syntaxError(path string, err error) error {
	msg := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: ")
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if line, why, ok := strings.Cut(rest, ": "); ok {
			path, msg = path+":"+line, why
		}
	}
	if strings.HasPrefix(msg, "unknown anchor") {
		msg = "unknown anchor: a value that begins with * must be quoted"
	}
	return fmt.Errorf("%s: not valid YAML: %s", path, msg)
}
