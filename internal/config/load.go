package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// here is the file in the working directory, which may be another user's.
const here = "unlocker.yaml"

// searchPaths are tried in order if there is no --config.
func searchPaths() []string { return []string{here, "/etc/unlocker/unlocker.yaml"} }

// Load returns the configuration, and the path of the file that it read, or "" if there is none.
// flags are the parsed flags of Flags. An environment variable with an empty value is not used. An
// error is one line: where the value was written, the dotted key, and what is wrong.
func Load(flags *pflag.FlagSet) (Config, string, error) {
	path, err := findFile(flags, searchPaths())
	if err != nil {
		return Config{}, "", err
	}
	var data []byte
	if path != "" {
		if data, err = read(path, !named(flags) && path == here); err != nil {
			return Config{}, path, fmt.Errorf("reading the configuration: %w", err)
		}
	}
	s, err := parse(path, data)
	if err != nil {
		return Config{}, path, err
	}
	c, err := merge(flags, s)
	return c, path, err
}

// findFile returns the file of --config, or the first existing one of the search paths, or "". It
// includes files that cannot be read: an error is better than the use of another file.
func findFile(flags *pflag.FlagSet, search []string) (string, error) {
	if named(flags) {
		path := flags.Lookup(configFlag).Value.String()
		if path == "" {
			return "", errors.New("--config: must not be empty")
		}
		return path, nil
	}
	for _, path := range search {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	return "", nil
}

func named(flags *pflag.FlagSet) bool { return flags.Changed(configFlag) }

// read reads a file. One that was only found must be trustworthy: it says where the password is sent.
func read(path string, found bool) ([]byte, error) {
	flags := os.O_RDONLY
	if found {
		flags |= syscall.O_NONBLOCK // a named pipe would have the command wait
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if of, is := info.Sys().(*syscall.Stat_t); found && is && (!info.Mode().IsRegular() || info.Mode()&0o022 != 0 || of.Uid != 0 && int(of.Uid) != os.Geteuid()) {
		return nil, fmt.Errorf("%s belongs to user %d and has mode %04o: in the working directory it must be a file of yours or root's that nobody else may write; "+
			"--config %s uses it all the same", path, of.Uid, info.Mode().Perm(), path)
	}
	return io.ReadAll(f)
}

// merge lets viper choose for each key among flag, variable, file and default.
func merge(flags *pflag.FlagSet, s *settings) (Config, error) {
	c := Config{Policies: s.policies}
	v, origins := viper.New(), s.origins
	if err := v.MergeConfigMap(s.texts); err != nil {
		return Config{}, fmt.Errorf("merging the configuration file: %w", err)
	}
	for _, k := range c.keys() {
		v.SetDefault(k.name, k.def)
		if err := cmp.Or(k.bindSources(v, flags, origins), k.Set(k.chosen(v)), k.check()); err != nil {
			return Config{}, fault(origins[k.name], k.name, err.Error())
		}
	}
	if err := c.relate(origins); err != nil {
		return Config{}, err
	}
	return c, nil
}

// bindSources binds the variable and the flag of a key in viper, and notes the one that overrides
// the file, if any, as the origin of the value.
func (k key) bindSources(v *viper.Viper, flags *pflag.FlagSet, origins map[string]string) error {
	if k.fileOnly() {
		return nil
	}
	if os.Getenv(k.env()) != "" {
		origins[k.name] = k.env()
	}
	f := flags.Lookup(k.flag())
	if f == nil {
		return v.BindEnv(k.name, k.env())
	}
	if f.Changed {
		origins[k.name] = "--" + f.Name
	}
	return errors.Join(v.BindEnv(k.name, k.env()), v.BindPFlag(k.name, f))
}

// chosen returns the value that viper chose, as text. A policy inherits what it leaves out or empty.
func (k key) chosen(v *viper.Viper) string {
	if list, ok := v.Get(k.name).([]string); ok { // a repeated flag
		return strings.Join(list, ",")
	}
	return cmp.Or(v.GetString(k.name), v.GetString(k.other))
}

// fault returns a one-line error: where a value was written, its key, and what is wrong. Empty
// parts are omitted.
func fault(origin, key, why string) error {
	known := slices.DeleteFunc([]string{origin, key, why}, func(s string) bool { return s == "" })
	return errors.New(strings.Join(known, ": "))
}

// settings are the contents of a file: the text of each value, for key.Set, and where it was
// written.
type settings struct {
	path     string
	known    map[string]key // a section is a key without a place
	texts    map[string]any
	origins  map[string]string // file:line
	policies []Policy          // of the right number, but without values
}

// parse reads YAML more strictly than viper: exact keys, no duplicates, one document, right types.
func parse(path string, data []byte) (*settings, error) {
	s := &settings{path: path, known: map[string]key{}, texts: map[string]any{}, origins: map[string]string{}}
	if len(data) > 1<<20 {
		return s, fault(path, "", "larger than 1 MiB: not a configuration file")
	}
	s.know(new(Config).keys())
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if err == nil {
		err = dec.Decode(&second)
	}
	switch {
	case err == nil:
		return s, s.refuse(&second, "", "a second YAML document: only one is allowed")
	case !errors.Is(err, io.EOF):
		return s, syntaxError(path, err)
	case doc.IsZero(): // an empty file
		return s, nil
	}
	return s, s.section("", doc.Content[0], doc.Content[0])
}

// syntaxError converts "yaml: line 3: …" to "file:3: …". It omits the name of an unknown anchor, as
// that may be an unquoted password.
func syntaxError(path string, err error) error {
	msg, line := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: "), 0
	if _, err := fmt.Sscanf(msg, "line %d:", &line); err == nil {
		_, msg, _ = strings.Cut(msg, ": ")
		path = fmt.Sprintf("%s:%d", path, line)
	}
	if strings.HasPrefix(msg, "unknown anchor") {
		msg = "unknown anchor: a value that begins with * must be quoted"
	}
	return fault(path, "not valid YAML", msg)
}

func (s *settings) know(keys []key) {
	for _, k := range keys {
		s.known[k.name] = k
		for i, c := range k.name {
			if c == '.' {
				s.known[k.name[:i]] = key{}
			}
		}
	}
}

// section reads a mapping, or a null, which is a section whose keys are all commented out.
func (s *settings) section(name string, at, n *yaml.Node) error {
	if n.Kind != yaml.MappingNode && !isNull(n) {
		return s.refuse(at, name, "must be a mapping, not "+describe(n))
	}
	lines := map[string]int{}
	for pair := range slices.Chunk(n.Content, 2) {
		k, v := pair[0], resolve(pair[1])
		full, first := join(name, k), lines[k.Value]
		known, ok := s.known[full]
		lines[k.Value] = k.Line
		var err error
		switch {
		case first > 0:
			err = s.refuse(k, full, fmt.Sprintf("given twice, first in line %d", first))
		case strings.Contains(k.Value, "."):
			err = s.refuse(k, full, "unknown key: nest sections instead of writing dots")
		case full == "reaper.storm.hold": // of an earlier version
			err = s.refuse(k, full, "was replaced by reaper.storm.delay: a storm no longer stops all removals but delays each further lock")
		case !ok || k.Kind != yaml.ScalarNode || strings.Contains(k.Value, "["):
			err = s.refuse(k, full, "unknown key")
		case known.place == nil:
			err = s.section(full, k, v)
		default:
			err = s.value(known, k, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) value(known key, k, v *yaml.Node) error {
	kind, elements := known.kind(), []*yaml.Node{v}
	list := strings.HasPrefix(kind.wants, "a list")
	switch {
	case isNull(v):
		return s.refuse(k, known.name, "has no value: write one, or leave the key out")
	case list != (v.Kind == yaml.SequenceNode):
		return s.refuse(k, known.name, kind.not(v))
	case known.name == policiesKey:
		return s.readPolicies(v.Content)
	case list:
		elements = v.Content
	}
	var texts []string
	for _, n := range elements {
		n = resolve(n)
		if n.Kind != yaml.ScalarNode || !strings.Contains(kind.tags, n.ShortTag()) {
			return s.refuse(k, known.name, kind.not(n))
		}
		if list && strings.Contains(n.Value, ",") {
			return s.refuse(k, known.name, "an element of the list must not contain a comma")
		}
		if list && n.Value == "" {
			return s.refuse(k, known.name, "an element of the list must not be empty")
		}
		texts = append(texts, n.Value)
	}
	s.texts[known.name], s.origins[known.name] = strings.Join(texts, ","), s.at(k)
	return nil
}

// not returns the error text for a node of the wrong type.
func (k kind) not(n *yaml.Node) string {
	why := "must be " + k.wants + ", not " + describe(n)
	if k.tags == "!!str" && n.Kind == yaml.ScalarNode && n.ShortTag() != "!!str" {
		why += ": put it in quotes"
	}
	return why
}

func (s *settings) readPolicies(list []*yaml.Node) error {
	s.policies = append(s.policies, make([]Policy, len(list))...) // nil for none
	s.know((&Config{Policies: s.policies}).keys())
	for i, n := range list {
		name := policyName(i)
		s.origins[name+".match"] = s.at(n) // for the error if it is missing
		if err := s.section(name, n, resolve(n)); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d", s.path, n.Line) }

func (s *settings) refuse(at *yaml.Node, name, why string) error { return fault(s.at(at), name, why) }

// join makes a dotted name and quotes what could break the line of an error. What follows a colon
// is not repeated: a key such as "password:secret" is a key and its value without a space between
// them.
func join(section string, k *yaml.Node) string {
	name, _, cut := strings.Cut(k.Value, ":")
	if cut {
		name += ":…"
	}
	if q := strconv.Quote(name); k.Kind != yaml.ScalarNode || q != `"`+name+`"` || name == "" {
		name = q
	}
	return strings.TrimPrefix(section+"."+name, ".")
}

func resolve(n *yaml.Node) *yaml.Node { return cmp.Or(n.Alias, n) }

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe returns the type of a node, but not its value, which may be a secret.
func describe(n *yaml.Node) string {
	words := map[string]string{
		"!!map": "a mapping", "!!seq": "a list", "!!str": "a string", "!!int": "a number", "!!float": "a number with a fraction",
		"!!bool": "a boolean", "!!null": "null", "!!timestamp": "a date",
	}
	return cmp.Or(words[n.ShortTag()], "a value of another type")
}
