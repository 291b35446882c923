package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// searchPaths are tried in order if there is no --config.
func searchPaths() []string { return []string{"unlocker.yaml", "/etc/unlocker/unlocker.yaml"} }

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
		if data, err = os.ReadFile(path); err != nil {
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
	if f := flags.Lookup(configFlag); f != nil && f.Changed {
		if f.Value.String() == "" {
			return "", errors.New("--config: must not be empty")
		}
		return f.Value.String(), nil
	}
	for _, path := range search {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	return "", nil
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
