package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// kind is the type of a key: its name in --help, and the values that the file may contain, in words
// and as YAML tags.
type kind struct{ name, wants, tags string }

func (k key) kind() kind {
	switch k.place.(type) {
	case *bool:
		return kind{"bool", "true or false", "!!bool"}
	case *int:
		return kind{"int", "a whole number", "!!int"}
	case *float64:
		return kind{"number", "a number", "!!int !!float"}
	case *time.Duration: // numbers have these tags so that Set can refuse them with the reason
		return kind{"duration", "a duration such as 10s", "!!str !!int !!float"}
	case *[]string:
		return kind{"strings", "a list of strings", "!!str"}
	case *[]Policy:
		return kind{"policies", "a list of mappings", ""}
	}
	return kind{"string", "a string", "!!str"}
}

func (k key) Type() string { return k.kind().name }

// String implements pflag.Value. It returns text that Set accepts, and reveals a secret.
func (k key) String() string {
	switch p := k.place.(type) {
	case *float64:
		return strconv.FormatFloat(*p, 'f', -1, 64)
	case *time.Duration:
		return formatDuration(*p)
	case *[]string:
		return strings.Join(*p, ",")
	case *Secret:
		return p.Reveal()
	case *[]Policy:
		return ""
	}
	return fmt.Sprint(reflect.ValueOf(k.place).Elem())
}

// Set implements pflag.Value. A value has the same form in a flag, in a variable and in the file.
func (k key) Set(text string) (err error) {
	switch p := k.place.(type) {
	case *bool:
		if *p, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case *int:
		*p, err = parseDecimal(text, "a whole number", strconv.Atoi)
	case *float64:
		*p, err = parseDecimal(text, "a number", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	case *time.Duration:
		*p, err = parseDuration(text)
	case *[]string:
		if *p = nil; strings.TrimSpace(text) != "" {
			*p = regexp.MustCompile(`\s*,\s*`).Split(strings.TrimSpace(text), -1)
		}
	case *Secret:
		*p = NewSecret(text)
	case *string:
		*p = text
	}
	return err
}

// parseDuration is time.ParseDuration with days, which come first and are whole.
func parseDuration(text string) (time.Duration, error) {
	days, rest := time.Duration(0), text
	if parts := regexp.MustCompile(`^(\d{1,4})d(\d.*)?$`).FindStringSubmatch(text); parts != nil {
		n, _ := strconv.Atoi(parts[1])
		days, rest = time.Duration(n)*24*time.Hour, cmp.Or(parts[2], "0")
	}
	d, err := time.ParseDuration(rest)
	if sum := days + d; err == nil && sum >= d {
		return sum, nil
	}
	return 0, fmt.Errorf("%q is not a duration with a unit, such as 10s, 5m, 1h30m or 2d", text)
}

// Duration returns the value of a flag with a duration as the file has them.
func Duration(p *time.Duration) pflag.Value { return key{place: p} }

// DurationVar defines a flag of that kind. A default below 1ns is not printed.
func DurationVar(flags *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	flags.Var(Duration(p), name, usage)
	if value <= 0 {
		flags.Lookup(name).DefValue = ""
	}
}

// formatDuration returns 1h instead of 1h0m0s.
func formatDuration(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// parseDecimal refuses 010, 0x10, 1_000 and 1e3, which have different meanings in YAML and in a
// shell.
func parseDecimal[T any](s, what string, parse func(string) (T, error)) (T, error) {
	n, err := parse(s)
	plain := regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`).MatchString(s)
	switch {
	case plain && errors.Is(err, strconv.ErrRange):
		return n, fmt.Errorf("%q is too large", s)
	case !plain || err != nil:
		return n, fmt.Errorf("%q is not %s in plain decimal digits", s, what)
	}
	return n, nil
}

// YAML returns a file with every key and its effective value, in the order of config.example.yaml.
// Load accepts it, unless there is a password, which is replaced by "<redacted>".
func (c Config) YAML() []byte {
	sections := map[string]*yaml.Node{"": {Kind: yaml.MappingNode}}
	for _, k := range c.keys() {
		insert(sections, k.name, k.node())
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	_ = errors.Join(enc.Encode(sections[""]), enc.Close()) // nodes of texts, and a buffer takes everything
	return b.Bytes()
}

// insert adds a node by its dotted name, and the missing sections that contain it.
func insert(sections map[string]*yaml.Node, name string, n *yaml.Node) {
	sections[name] = n
	i := strings.LastIndexAny(name, ".[")
	section := name[:max(i, 0)]
	if sections[section] == nil {
		insert(sections, section, &yaml.Node{Kind: yaml.MappingNode})
	}
	parent := sections[section]
	if parent.Kind == yaml.MappingNode { // and not the list of policies
		parent.Content = append(parent.Content, scalar(name[i+1:]))
	}
	parent.Content = append(parent.Content, n)
}

// node returns the value as in the file, with a secret redacted.
func (k key) node() *yaml.Node {
	switch place := k.place.(type) {
	case *string:
		return text(*place)
	case *Secret:
		return text(place.String())
	case *[]string:
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, s := range *place {
			list.Content = append(list.Content, text(s))
		}
		return list
	case *[]Policy:
		return &yaml.Node{Kind: yaml.SequenceNode} // the elements are keys
	}
	return scalar(k.String()) // Encode would write 1e+06, and 1h0m0s
}

// text returns a string in quotes where a reader of YAML 1.1 or 1.2 needs them. The encoder writes a literal block for lines,
// which is not valid in a list if the first one is empty.
func text(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: s}
	if !strings.Contains(s, "\n") {
		_ = n.Encode(s)
	}
	return n
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
