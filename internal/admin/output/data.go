package output

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"iter"

	"sigs.k8s.io/yaml"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

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
