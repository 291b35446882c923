package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// asUnlocker makes the binary of the tests behave as unlocker.
const asUnlocker = "RUN_AS_UNLOCKER"

func TestMain(m *testing.M) {
	if os.Getenv(asUnlocker) != "" {
		main()
	}
	time.Local = time.FixedZone("CET", 3600) // before anything else asks for the time
	for _, timeout := range []string{"UNLOCKER_ETCD_DIAL_TIMEOUT", "UNLOCKER_ETCD_REQUEST_TIMEOUT"} {
		_ = os.Setenv(timeout, etcdtest.Soon.String()) // the commands wait for an etcd on a busy machine
	}
	// A job in the background of a shell ignores SIGINT. What is notified of is not ignored by the
	// programs that the tests start.
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	etcdtest.Main(m)
}

// call runs a command line in an empty directory, so that no configuration file
// is found there.
func call(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&err)
	code = run(ctx, root, args)
	return code, out.String(), err.String()
}

func TestWrongCommandLines(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("bad.yaml", []byte("reaper: {gracious: 1s}\n"), 0o600))
	for args, names := range map[string]string{
		"frob":                             `"frob"`,
		"serv":                             `unknown command "serv" for "unlocker" (did you mean serve?); see unlocker --help`,
		"lst":                              `unknown command "lst" for "unlocker" (did you mean ask or list?); see unlocker --help`,
		"config chek":                      `unknown command "chek" for "unlocker config" (did you mean check?); see unlocker config --help`,
		"--frob":                           "--frob",
		"config frob":                      `"frob"`,
		"serve --frob":                     "--frob",
		"serve extra":                      `unexpected argument "extra": --config names the configuration file; see unlocker serve --help`,
		"config check extra":               `unexpected argument "extra": --config names the configuration file; see unlocker config check --help`,
		"config print extra":               `"extra"`,
		"version extra":                    `"extra"`,
		"completion frob":                  `"frob"`,
		"completion bash extra":            `"extra"`,
		"help frob":                        `"frob"`,
		"help config frob":                 `"config frob"`,
		"serve --reaper-grace soon":        "--reaper-grace",
		"serve --reaper-grace -1s":         "reaper.grace",
		"serve --config absent.yaml":       "absent.yaml",
		"serve --config bad.yaml":          "reaper.gracious",
		"config check --config bad.yaml":   "reaper.gracious",
		"config print --config bad.yaml":   "reaper.gracious",
		"config check --reaper-mode brave": "reaper.mode",
		"config check --etcd-username u":   "etcd.username",
		"serve --ops-listen 9480":          "ops.listen",
		"serve --web-listen 9481":          "web.listen",
		"serve --web-path-prefix x/":       "web.path_prefix",
		"serve --log-level loud":           "log.level",
	} {
		t.Run(args, func(t *testing.T) {
			code, stdout, stderr := call(t, t.Context(), strings.Fields(args)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.True(t, strings.HasPrefix(stderr, "unlocker: "), stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.Contains(t, stderr, names)
		})
	}
}

// An error that quotes a server must not move the cursor or fill the screen.
func TestErrorsAreSafeToPrint(t *testing.T) {
	fails := func(text string) string {
		root, stderr := newRoot(), bytes.Buffer{}
		root.SetErr(&stderr)
		root.AddCommand(&cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error { return errors.New(text) }})
		require.Equal(t, exitFailure, run(t.Context(), root, []string{"fail"}))
		return stderr.String()
	}
	hostile := fails("etcdserver: \x1b]0;pwned\x07\x1b[2J\nnext " + strings.Repeat("x", 100_000))
	require.NotContains(t, hostile, "\x1b")
	require.NotContains(t, hostile, "\x07")
	require.Contains(t, hostile, "\nnext x")
	require.Less(t, len(hostile), maxError+100)
	require.Equal(t, "unlocker: plain words: \"ä\"\n", fails("plain words: \"ä\""))
}

func TestEnvironmentIsNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("UNLOCKER_REAPER_GRACE", "soon")
	code, _, stderr := call(t, t.Context(), "config", "check")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "UNLOCKER_REAPER_GRACE")
	require.Contains(t, stderr, "reaper.grace")
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, format := range []string{"json", "logfmt"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		code, stdout, stderr := call(t, ctx, "serve", "--ops-listen=127.0.0.1:0", "--web-listen=127.0.0.1:0", "--etcd-endpoints=127.0.0.1:1", "--log-format="+format)
		require.Equal(t, exitOK, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, map[string]string{"json": `"msg":"stopped"`, "logfmt": "msg=stopped"}[format])
	}
}

func TestConfigCheckAndPrint(t *testing.T) {
	t.Chdir(t.TempDir())
	code, stdout, stderr := call(t, t.Context(), "config", "check")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "ok (no file: flags, environment and defaults)\n", stdout)

	t.Setenv("UNLOCKER_ETCD_PASSWORD", "hush")
	code, printed, stderr := call(t, t.Context(), "config", "print", "--reaper-grace=7s", "--etcd-username=u")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, printed, "grace: 7s")
	require.NotContains(t, printed, "hush")

	require.NoError(t, os.WriteFile("unlocker.yaml", []byte("reaper: {grace: 8s}\n"), 0o600))
	code, stdout, stderr = call(t, t.Context(), "config", "check", "--etcd-username=u")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "ok (unlocker.yaml)\n", stdout)
	_, printed, _ = call(t, t.Context(), "config", "print", "--etcd-username=u")
	require.Contains(t, printed, "grace: 8s")
}

// What is printed is a configuration that says the same.
func TestConfigPrintCanBeRead(t *testing.T) {
	t.Chdir(t.TempDir())
	_, printed, _ := call(t, t.Context(), "config", "print", "--prefix=/locks/")
	require.NoError(t, os.WriteFile("printed.yaml", []byte(printed), 0o600))
	code, again, stderr := call(t, t.Context(), "config", "print", "--config=printed.yaml")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, printed, again)
}

// The first line of the README that writes a file must not destroy what it reads.
func TestConfigPrintDoesNotOverwrite(t *testing.T) {
	t.Chdir(t.TempDir())
	_, printed, _ := call(t, t.Context(), "config", "print", "--reaper-grace=7s")
	command := []string{"config", "print", "--output", "unlocker.yaml"}
	code, stdout, stderr := call(t, t.Context(), append(command, "--reaper-grace=7s")...)
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, stdout+stderr)
	for range 2 {
		written, err := os.ReadFile("unlocker.yaml")
		require.NoError(t, err)
		require.Equal(t, printed, string(written))
		code, stdout, stderr = call(t, t.Context(), command...)
		require.Equal(t, exitFailure, code)
		require.Empty(t, stdout)
		require.Equal(t, "unlocker: --output: unlocker.yaml exists and is not overwritten\n", stderr)
	}
	code, _, stderr = call(t, t.Context(), "config", "print", "--output", "absent/unlocker.yaml")
	require.Equal(t, exitFailure, code)
	require.Equal(t, "unlocker: --output: open absent/unlocker.yaml: no such file or directory\n", stderr)
}

func TestVersion(t *testing.T) {
	code, stdout, _ := call(t, t.Context(), "version")
	require.Equal(t, exitOK, code)
	require.True(t, strings.HasPrefix(stdout, "unlocker, version "), stdout)
	code, flag, _ := call(t, t.Context(), "--version")
	require.Equal(t, exitOK, code)
	require.Equal(t, stdout, flag)
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, stderr := call(t, t.Context(), "completion", shell)
		require.Equal(t, exitOK, code, stderr)
		require.Contains(t, stdout, "__complete")
	}
	code, stdout, _ := call(t, t.Context(), "__complete", "serve", "--reaper-gr")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "--reaper-grace")
}

// The help of every command, as a terminal of 100 columns shows it.
func TestHelp(t *testing.T) {
	root := newRoot()
	completeTree(root)
	each(root, func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())
		t.Run(strings.Join(path, " "), func(t *testing.T) {
			require.NotEmpty(t, cmd.Short)
			code, stdout, stderr := call(t, t.Context(), append(path[1:], "--help")...)
			require.Equal(t, exitOK, code)
			require.Empty(t, stderr)
			for line := range strings.Lines(stdout) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, line)
			}
			if path[len(path)-1] == "help" || strings.Contains(cmd.CommandPath(), "completion") {
				return // cobra's own
			}
			requireGolden(t, strings.Join(path, "-")+".txt", stdout)
		})
	})
}

func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, f)
	}
}

// requireGolden compares with testdata/name; UPDATE=1 go test writes it.
func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestEveryLeafSaysMoreThanItsName(t *testing.T) {
	each(newRoot(), func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() && cmd.Name() != "version" {
			require.NotEmpty(t, cmd.Long, cmd.CommandPath())
		}
	})
}
