package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// etcd is a real one.
type etcd struct {
	*etcdtest.Etcd
	t *testing.T
}

// newEtcd runs an etcd for a test that may run beside others.
func newEtcd(t *testing.T) etcd {
	t.Helper()
	t.Parallel()
	return startEtcd(t, localetcd.Options{})
}

// startEtcd runs an etcd for a test that changes the environment, or that measures time.
func startEtcd(t *testing.T, o localetcd.Options) etcd {
	t.Helper()
	return etcd{etcdtest.Start(t, o), t}
}

// take writes a lock of six keys that is held by "u-" and its name, for 90 seconds.
func (e etcd) take(name string, alert, unlock time.Duration) {
	e.t.Helper()
	now := time.Now()
	e.Put(e.Lock(name, now.Add(alert), now.Add(unlock), "locked_at", etcdtest.Stamp(now.Add(-90*time.Second)))...)
}

// call runs a command line against it, with stdin from in.
func (e etcd) call(in io.Reader, args ...string) (code int, stdout, stderr string) {
	e.t.Helper()
	return callIn(e.t.Context(), in, append(args, "--etcd-endpoints", e.Endpoints()[0])...)
}

func callIn(ctx context.Context, in io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	root := newRoot()
	root.SetIn(in)
	root.SetOut(&out)
	root.SetErr(&err)
	code = run(ctx, root, args)
	return code, out.String(), err.String()
}

func TestListCommand(t *testing.T) {
	e := newEtcd(t)
	code, stdout, stderr := e.call(nil, "list")
	require.Equal(t, exitOK, code)
	require.Empty(t, stdout)
	require.Equal(t, "no locks under /mutexes/\n", stderr)

	e.take("billing/invoices", -time.Minute, time.Hour)
	e.take("billing/x", time.Hour, time.Hour)
	e.take("deploy", time.Hour, time.Hour)
	e.Set("evil\n\x1b[2J", "uuid", "u")
	const tickets = "/unlocker/waiters/mutexes/billing/invoices//"
	e.Put(clientv3.OpPut(tickets+"1", `{"uuid": "u", "hostname": "worker-2", "pid": "12", "owner": "billing", "purpose": "\u001b[2J", "since": "2026-01-01T00:00:00Z"}`), clientv3.OpPut(tickets+"2", "{"))

	code, stdout, stderr = e.call(nil, "list")
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, stderr)
	require.Equal(t, 5, strings.Count(stdout, "\n"), stdout)
	require.Regexp(t, `^NAME +STATE +HOSTNAME +OWNER +HELD +ALERT +UNLOCK +WAITERS\nbilling/invoices +overdue +worker-1 +billing +1m[345]\ds +1m[012]\ds ago +in \S+ +2\n`, stdout)
	require.Regexp(t, `\n"evil\\n\\x1b\[2J" +undated +- +- +- +- +- +-\n$`, stdout)

	_, stdout, _ = e.call(nil, "show", "billing/invoices")
	require.Regexp(t, `\nWaiters: +2\n  1\. billing on worker-2, pid 12, since 2026-01-01 00:00:00 UTC  \(\S+ ago\): "\\x1b\[2J"\n  2\. a ticket that cannot be read\n`, stdout)
	_, stdout, _ = e.call(nil, "list", "-o", "name", "--match", "billing/*")
	require.Equal(t, "billing/invoices\nbilling/x\n", stdout)
	_, stdout, _ = e.call(nil, "list", "-o=name", "--state=overdue,undated")
	require.Equal(t, "billing/invoices\n\"evil\\n\\x1b[2J\"\n", stdout)
	_, stdout, _ = e.call(nil, "list", "-o=name", "--state=overdue", "--state=held", "--hostname=worker-1")
	require.Equal(t, "billing/invoices\nbilling/x\ndeploy\n", stdout)
	_, stdout, _ = e.call(nil, "list", "-o=name", "--owner=bill")
	require.Empty(t, stdout, "it is the whole name")

	_, stdout, stderr = e.call(nil, "list", "-o=name", "--limit=2")
	require.Equal(t, "billing/invoices\nbilling/x\n", stdout)
	require.Equal(t, "showing the first 2 of 4 locks\n", stderr)
	_, stdout, stderr = e.call(nil, "list", "-o=json", "--hostname=other")
	require.JSONEq(t, `{"locks": []}`, stdout)
	require.Equal(t, "none of the 4 locks under /mutexes/ match\n", stderr)

	_, stdout, _ = e.call(nil, "list", "-o", "json")
	var page api.LockPage
	require.NoError(t, json.Unmarshal([]byte(stdout), &page))
	require.Len(t, page.Locks, 4)
	require.Equal(t, "u-billing/invoices", page.Locks[0].UUID)
	require.Equal(t, "evil\n\x1b[2J", page.Locks[3].Name)
}

func TestCommandsTakeTheDaemonsConfiguration(t *testing.T) {
	e := startEtcd(t, localetcd.Options{})
	e.take("a", time.Hour, time.Hour)
	t.Setenv("UNLOCKER_ETCD_ENDPOINTS", e.Endpoints()[0])
	code, stdout, stderr := callIn(t.Context(), nil, "list", "-o=name", "--reaper-mode=dry-run", "--ops-listen=:9")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "a\n", stdout)
	_, stdout, stderr = callIn(t.Context(), nil, "list", "--prefix=/other/")
	require.Empty(t, stdout)
	require.Equal(t, "no locks under /other/\n", stderr)
}

func TestWrongCommandLinesOfAdmin(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, names := range map[string]string{
		"list extra":        `unexpected argument "extra": show NAME shows one lock, --match lists those that match a pattern; see unlocker list --help`,
		"list -o xml":       "want table, wide, json, yaml, name, jsonpath=TEMPLATE",
		"list --state Held": `--state: must be one of held, overdue, expired, undated, malformed, orphaned, not "Held"`,
		"list --silent":     "--silent requires --url, and cannot be used with --watch",
		"list --silent --watch --url http://127.0.0.1:1":                 "--silent requires --url, and cannot be used with --watch",
		"unlock a --uuid u --silent":                                     "--silent, --count and --url require --match",
		"unlock a --uuid u --count 1":                                    "--silent, --count and --url require --match",
		"unlock a --match *":                                             `unexpected argument "a": --match names the locks`,
		"unlock --match * --uuid u":                                      "--uuid cannot be used with --match",
		"unlock --match *":                                               "--reason is required with --match",
		"unlock --match * --reason r":                                    "--yes is required when stdin is not a terminal",
		"unlock --match * --reason r --yes":                              "--yes requires --count with --match",
		"unlock --match * --reason r --yes --count 1 --silent":           "--silent and --url require each other",
		"unlock --match * --reason r --yes --count 1 --url http://[::1]": "--silent and --url require each other",
		"unlock --match= --reason r --yes --count 1":                     "--match must not be empty",
		"unlock --match [ --reason r --yes --count 1":                    `--match: "[" is not a valid pattern`,
		"unlock --match /a --reason r --yes --count 1":                   `"/a" matches no lock`,
		"list --match [":                                                 "--match",
		"list --native":                                                  "native_prefixes is empty: --native needs them, for example --native-prefixes /locks/",
		"list --native --native-prefixes /":                              `native_prefixes: must be a path that ends with a slash and does not cover all of etcd, not "/"`,
		"list --native --state held":                                     "--state cannot be used with --native",
		"list --native --watch":                                          "--watch cannot be used with --native",
		"list --limit -1":                                                "--limit",
		"list --sort age":                                                `--sort: must be one of name, urgency, hostname, owner, held, alert, unlock, not "age"`,
		"list --watch --limit 3":                                         "--watch cannot be used with --limit, -o yaml or -o name",
		"list --watch -o yaml":                                           "--watch cannot be used with",
		"list -o jsonpath=.name":                                         "a template has its paths in braces",
		"show a -o jsonpath={.name":                                      "unclosed action",
		"list --prefix x":                                                "prefix",
		"show":                                                           "the name of one lock",
		"show a b":                                                       "the name of one lock",
		"show /a":                                                        "empty segment",
		"show /mutexes/a":                                                `without the prefix: "a"`,
		"show a --etcd-username u":                                       "etcd.username",
		"list --url ftp://x -o wide":                                     "the URL must begin with http://HOST",
		"list --username u -o wide":                                      "require --url",
		"show a --ca-file x":                                             "require --url",
		"show a --url http://u:hush@x":                                   "must not contain credentials",
		"show a --url http://127.0.0.1:1 --ca-file absent":               "absent",
		"show a --url http://127.0.0.1:1 --username u":                   "password file",
		"unlock a --url http://127.0.0.1:1":                              "--url",
		"unlock":                                                         "the name of one lock",
		"unlock a":                                                       "--uuid is required",
		"unlock a --uuid u":                                              "--yes is required when stdin is not a terminal",
		"unlock /a --uuid u --yes":                                       "empty segment",
		"unlock a --uuid u --yes --frob":                                 "--frob",
		"unlock a --uuid u --yes -o table -o":                            "-o",
	} {
		t.Run(args, func(t *testing.T) {
			code, stdout, stderr := callIn(t.Context(), strings.NewReader("y\n"), strings.Fields(args)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.True(t, strings.HasPrefix(stderr, "unlocker: "), stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.Contains(t, stderr, names)
		})
	}
}

// One line, at once, for each command.
func TestCommandsWithoutEtcd(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range []string{"list", "show a", "unlock a --uuid u --yes"} {
		began := time.Now()
		code, stdout, stderr := callIn(t.Context(), nil, append(strings.Fields(args), "--etcd-endpoints=127.0.0.1:1", "--etcd-request-timeout=1m", "--etcd-dial-timeout=1m")...)
		require.Equal(t, exitFailure, code)
		require.Empty(t, stdout)
		require.Equal(t, "unlocker: etcd at 127.0.0.1:1: no connection: dial tcp 127.0.0.1:1: connect: connection refused\n", stderr)
		require.Less(t, time.Since(began), etcdtest.Soon, "half of the timeouts")
	}
}

// The line names the key to change, and nothing else is printed.
func TestCommandsNameTheFailedConnection(t *testing.T) {
	e := newEtcd(t)
	for _, args := range []string{"list", "show a", "unlock a --uuid u --yes"} {
		code, stdout, stderr := callIn(t.Context(), nil, append(strings.Fields(args), "--etcd-endpoints=https://"+e.Addr(0))...)
		require.Equal(t, exitFailure, code)
		require.Empty(t, stdout)
		require.Regexp(t, "^unlocker: etcd at https://"+e.Addr(0)+": no connection: authentication handshake failed: [^\n]*: "+
			"etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty\n$", stderr)
	}
}

func TestCompletionOfAdmin(t *testing.T) {
	for args, want := range map[string]string{"list --state ": "orphaned", "show a -o ": "wide", "unlock a --output ": "yaml"} {
		words := strings.Split("__complete "+args, " ")
		_, stdout, _ := callIn(t.Context(), nil, words...)
		require.Contains(t, stdout, want, args)
	}
}

func TestCommandsSayThatCredentialsAreIgnored(t *testing.T) {
	e := startEtcd(t, localetcd.Options{})
	e.take("a", time.Hour, time.Hour)
	t.Setenv("UNLOCKER_ETCD_PASSWORD", "p")
	code, stdout, stderr := e.call(nil, "list", "-o=name", "--etcd-username=u")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "a\n", stdout)
	require.Equal(t, "etcd has authentication disabled: etcd.username is ignored\n", stderr)
}
