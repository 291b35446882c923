package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// invalid returns a file for each error that a configuration file can have, and the error without
// the path of the file. The word hunter2 in them is a secret.
func invalid(t require.TestingT) (cases []struct{ File, Error string }) {
	text, err := os.ReadFile("testdata/invalid.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &cases))
	require.NotEmpty(t, cases)
	return cases
}

// Every error is one line with exactly this text.
func TestInvalidFiles(t *testing.T) {
	cases := invalid(t)
	t.Chdir(t.TempDir())
	for _, c := range cases {
		t.Run(c.Error, func(t *testing.T) {
			write(t, "unlocker.yaml", c.File)
			_, source, err := Load(given(t))
			require.EqualError(t, err, "unlocker.yaml"+c.Error)
			require.Equal(t, "unlocker.yaml", source)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestValidFiles(t *testing.T) {
	tests := []struct{ name, file string }{
		{"empty", ""},
		{"only comments", "# nothing\n"},
		{"only a separator", "---\n"},
		{"end of document", "prefix: /mutexes/\n...\n"},
		{"sections whose keys are commented out", "reaper:\n  # grace: 1s\netcd:\n  tls:\n"},
		{"byte order mark and CRLF", "\ufeffprefix: /mutexes/\r\nlog:\r\n  level: info\r\n"},
		{"aliases", "etcd: {dial_timeout: &five 5s, request_timeout: *five, endpoints: [&e 127.0.0.1:2379]}\n"},
		{"JSON", `{"prefix": "/mutexes/", "reaper": {"batch_size": 64, "grace": "2s"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "unlocker.yaml"), tt.file)
			c, _, err := Load(given(t, "--config", path))
			require.NoError(t, err)
			require.Equal(t, Default(), c)
		})
	}
}

func TestOversizedFile(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "big"), strings.Repeat("#", 1<<20+1))
	_, _, err := Load(given(t, "--config", path))
	require.EqualError(t, err, path+": larger than 1 MiB: not a configuration file")
}

func FuzzFile(f *testing.F) {
	example, err := os.ReadFile(root + "config.example.yaml")
	require.NoError(f, err)
	f.Add(example)
	for _, c := range invalid(f) {
		f.Add([]byte(c.File))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := load("f", data)
		if err == nil {
			readBack(t, c)
			return
		}
		require.NotContains(t, err.Error(), "\n")
		require.Regexp(t, "^f:", err.Error())
	})
}

// load loads a file with this content, without flags.
func load(path string, data []byte) (Config, error) {
	s, err := parse(path, data)
	if err != nil {
		return Config{}, err
	}
	return merge(noFlags(), s)
}

// readBack requires that a valid configuration is the same after it was printed and loaded.
func readBack(t *testing.T, c Config) {
	t.Helper()
	if c.Etcd.Password.Reveal() != "" {
		return
	}
	out := c.YAML()
	got, err := load("printed", out)
	require.NoError(t, err)
	require.Equal(t, c, got)
}
