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

// searchPaths are tried in turn where --config names no file.
func searchPaths() []string { return []string{"unlocker.yaml", "/etc/unlocker/unlocker.yaml"} }

// Load returns the configuration, and the path of the file it read, or "" where there was none and --config named none. flags are those that
// Flags registered, parsed. An environment variable that is set to the empty string counts as not set. An error is one line: where the value
// was written, the dotted key, and what is wrong.
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

// findFile returns the named file, else the first of the search paths that exists, else "". A file that exists and cannot be read is found,
// too: the error of reading it is better than using another file.
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
func merge(flags *pflag.FlagSet, s settings) (Config, error) {
	c := Config{Policies: s.policies}
	v, origins := viper.New(), map[string]string{}
	if err := v.MergeConfigMap(s.texts); err != nil {
		return Config{}, fmt.Errorf("merging the configuration file: %w", err)
	}
	for _, k := range c.keys() {
		v.SetDefault(k.name, k.def)
		override, err := bindSources(v, flags, k)
		origins[k.name] = cmp.Or(override, s.origins[k.name])
		if err = cmp.Or(err, k.Set(chosen(v, k)), k.check()); err != nil {
			return Config{}, fault(origins[k.name], k.name, err.Error())
		}
	}
	if err := c.relate(origins); err != nil {
		return Config{}, err
	}
	return c, nil
}

// bindSources tells viper of the key's variable and flag. It returns the one that is given and so overrides the file, "" for none.
func bindSources(v *viper.Viper, flags *pflag.FlagSet, k key) (override string, err error) {
	if k.fileOnly() {
		return "", nil
	}
	if os.Getenv(k.env()) != "" {
		override = k.env()
	}
	if f := flags.Lookup(k.flag()); f != nil {
		if f.Changed {
			override = "--" + f.Name
		}
		err = v.BindPFlag(k.name, f)
	}
	return override, errors.Join(err, v.BindEnv(k.name, k.env()))
}

// chosen returns what viper chose, as text.
func chosen(v *viper.Viper, k key) string {
	if list, ok := v.Get(k.name).([]string); ok { // a repeated flag
		return strings.Join(list, ",")
	}
	return cmp.Or(v.GetString(k.name), v.GetString(k.other))
}

// fault returns a one-line error of what is known of where a value was written, its key, and what is wrong.
func fault(origin, key, why string) error {
	known := slices.DeleteFunc([]string{origin, key, why}, func(s string) bool { return s == "" })
	return errors.New(strings.Join(known, ": "))
}
