package main

import (
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

// What fails although the command line is right is not the caller's error. A program that reads
// the log learns why.
func TestFailedStartIsLoggedInTheConfiguredFormat(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	for name, flags := range map[string][]string{
		"listener":         {"--ops-listen=" + taken.Addr().String()},
		"file":             {"--etcd-tls-ca-file=absent", "--ops-listen=127.0.0.1:0"},
		"web after ops":    {"--ops-listen=127.0.0.1:0", "--web-listen=" + taken.Addr().String()},
		"web config file":  {"--ops-listen=127.0.0.1:0", "--ops-web-config-file=absent"},
		"hostile argument": {"--ops-listen=127.0.0.1:0", "--etcd-tls-ca-file=a\x1b[2J\nb"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"serve", "--etcd-endpoints=127.0.0.1:1", "--web-listen=127.0.0.1:0"}, flags...)
			code, stdout, stderr := call(t, t.Context(), args...)
			require.Equal(t, exitFailure, code)
			require.Empty(t, stdout)
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			for _, text := range lines {
				require.True(t, json.Valid([]byte(text)), text)
			}
			var last struct{ Level, Msg, Error string }
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
			require.Equal(t, "ERROR", last.Level)
			require.Equal(t, api.LogFailed, last.Msg)
			require.NotEmpty(t, last.Error)

			code, _, stderr = call(t, t.Context(), append(args, "--log-format=logfmt")...)
			require.Equal(t, exitFailure, code)
			require.Regexp(t, `(?m)^time=\S+ level=ERROR msg="unlocker failed" error=.+\n\z`, stderr)
		})
	}
}

// What stands in etcd reaches the log, whose lines people print on terminals.
func TestLogLinesAreSafeToPrint(t *testing.T) {
	for _, format := range []string{"json", "logfmt"} {
		var log bytes.Buffer
		logger := newLogger(&log, config.Log{Level: "info", Format: format})
		logger.Info("removed", "lock", "a\u202eb\x1b[2J\u0085é")
		require.NotContains(t, log.String(), "\u202e")
		require.NotContains(t, log.String(), "\x1b")
		require.NotContains(t, log.String(), "\u0085")
		require.Contains(t, log.String(), "é")
		if format == "json" {
			var line struct{ Lock string }
			require.NoError(t, json.Unmarshal(log.Bytes(), &line))
			require.Equal(t, "a\u202eb\x1b[2J\u0085é", line.Lock)
		}
	}
}
