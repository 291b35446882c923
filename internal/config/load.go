package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// searchPaths are tried in turn where --config names no file.
func searchPaths() []string { return []string{"unlocker.yaml", "/etc/unlocker/unlocker.yaml"} }

// Load returns the configuration, and the path of the file it read, or "" where there was none and --config named none. flags are those that
// Flags registered, parsed; nil, or a set without some of them, is a configuration without flags. An environment variable that is set to
// the empty string counts as not set. An error is one line: where the value was written, the dotted key, and what is wrong.
func Load(flags *pflag.FlagSet) (Config, string, error) {
	if flags == nil {
		flags = new(pflag.FlagSet)
	}
	path, err := findFile(flags, searchPaths())
	if err != nil {
		return Config{}, "", err
	}
	settings := map[string]any{}
	if path != "" {
		if settings, err = readFile(path); err != nil {
			return Config{}, path, err
		}
	}
	c, err := merge(flags, settings)
	return c, path, err
}

// findFile returns the named file, else the first of the search paths that exists, else "". One that exists and cannot be read is found, too:
// the error of reading it is better than another file.
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

// merge lets viper choose for each key among flag, variable and file, and starts from the defaults.
func merge(flags *pflag.FlagSet, settings map[string]any) (Config, error) {
	c := Default()
	v := viper.New()
	if err := v.MergeConfigMap(settings); err != nil {
		return Config{}, fmt.Errorf("merging the configuration file: %w", err)
	}
	origins := map[string]string{}
	if err := take(v, flags, c.keys(), origins); err != nil {
		return Config{}, err
	}
	if err := take(v, flags, c.policyKeys(), origins); err != nil { // there is room for them only now
		return Config{}, err
	}
	c.inherit(origins)
	if err := c.Validate(); err != nil {
		return Config{}, place(err, origins)
	}
	return c, nil
}

// take sets the keys that were given and notes where.
func take(v *viper.Viper, flags *pflag.FlagSet, keys []key, origins map[string]string) error {
	for _, k := range keys {
		if err := offer(v, flags, k); err != nil {
			return err
		}
		if !v.IsSet(k.name) {
			continue
		}
		var given string
		given, origins[k.name] = chosen(v, flags, k)
		if err := k.value.Set(given); err != nil {
			return fmt.Errorf("%s: %s: %w", origins[k.name], k.name, err)
		}
	}
	return nil
}

// offer tells viper of the key's variable and flag.
func offer(v *viper.Viper, flags *pflag.FlagSet, k key) error {
	if k.fileOnly {
		return nil
	}
	if err := v.BindEnv(k.name, k.env()); err != nil {
		return fmt.Errorf("%s: binding %s: %w", k.name, k.env(), err)
	}
	f := flags.Lookup(k.flag())
	if f == nil {
		return nil
	}
	if err := v.BindPFlag(k.name, f); err != nil {
		return fmt.Errorf("%s: binding --%s: %w", k.name, k.flag(), err)
	}
	return nil
}

// chosen returns the text that viper chose, and where it was written. Only the file's values come with their place; a flag that was given
// always wins, so what remains is the variable.
func chosen(v *viper.Viper, flags *pflag.FlagSet, k key) (given, origin string) {
	got := v.Get(k.name)
	if w, ok := got.(written); ok {
		return w.text, w.origin
	}
	if flags.Changed(k.flag()) {
		return fmt.Sprint(got), "--" + k.flag()
	}
	return fmt.Sprint(got), k.env()
}

// place adds to an error of Validate where the offending value was written or, if that is a default, the value it does not go with.
func place(err error, origins map[string]string) error {
	var ke *keyError
	if !errors.As(err, &ke) {
		return err
	}
	if at := cmp.Or(origins[ke.key], origins[ke.with]); at != "" {
		return fmt.Errorf("%s: %w", at, err)
	}
	return err
}
