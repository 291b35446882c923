package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// instant is an instant in local time and in UTC.
const instant = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d CET \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)`

// pauses returns the keys of pauses, with the seconds that their leases have left.
func (e etcd) pauses() map[string]int64 {
	e.t.Helper()
	const under = "/unlocker/pause/mutexes/"
	resp, err := e.Client.Get(e.t.Context(), under, clientv3.WithPrefix())
	require.NoError(e.t, err)
	left := map[string]int64{}
	for _, kv := range resp.Kvs {
		lease, err := e.Client.TimeToLive(e.t.Context(), clientv3.LeaseID(kv.Lease))
		require.NoError(e.t, err)
		left[string(kv.Key[len(under):])] = lease.TTL
	}
	return left
}

func TestPauseAndResume(t *testing.T) {
	e := newEtcd(t)
	code, stdout, stderr := e.call(nil, "pause", "--for", "2h", "--reason", "network maintenance")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^paused until `+instant+`: no lock under /mutexes/ is removed automatically\n$`, stdout)
	require.Empty(t, stderr)
	require.InDelta(t, 2*3600, e.pauses()["all"], 10)
	code, _, stderr = e.call(nil, "pause", "--for", "2d", "--reason", "network maintenance")
	require.Equal(t, exitOK, code, stderr)
	require.InDelta(t, 48*3600, e.pauses()["all"], 10)

	code, stdout, stderr = e.call(nil, "pause", "--match", "deploy/**", "--for", "30m", "--reason", "debugging \"web\"")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^paused until `+instant+`: no lock that matches "deploy/\*\*" under /mutexes/ is removed automatically\n$`, stdout)
	code, _, stderr = e.call(nil, "pause", "--match", "deploy/**", "--for", "1h", "--reason", "still debugging")
	require.Equal(t, exitOK, code, stderr)
	left := e.pauses()
	require.Len(t, left, 2, "the same pattern replaces it")
	require.InDelta(t, 3600, left["match/deploy/**"], 10)

	// Nobody ends by surprise the pause of all locks, meaning another.
	code, stdout, stderr = e.call(nil, "resume")
	require.Equal(t, exitFailure, code)
	require.Regexp(t, `^PAUSED .*\nall locks .*network maintenance\n"deploy/\*\*" .*still debugging\n$`, stdout)
	require.Equal(t, "unlocker: there are several pauses: --all ends that of all locks, --match PATTERN another\n", stderr)
	require.Len(t, e.pauses(), 2)

	code, stdout, stderr = e.call(nil, "resume", "--all")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^resumed: all locks under /mutexes/; it was paused until `+instant+` by \S+@\S+: network maintenance\n`+
		`PAUSED .*\n"deploy/\*\*" .*\S+@\S+ +still debugging\n$`, stdout)
	code, stdout, stderr = e.call(nil, "resume")
	require.Equal(t, exitFailure, code)
	require.Regexp(t, `^PAUSED .*\n"deploy/\*\*" .*\n$`, stdout)
	require.Equal(t, "unlocker: there is no such pause\n", stderr)

	e.Put(clientv3.OpPut("/unlocker/pause/mutexes/match/\x1b[2J", "x"))
	code, stdout, stderr = e.call(nil, "resume", "--match", "deploy/**")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^resumed: locks that match "deploy/\*\*" under /mutexes/; it was paused until .* by \S+@\S+: still debugging\n`+
		`PAUSED .*\nall locks +- +- +"the record /unlocker/pause/mutexes/match/\\x1b\[2J cannot be read"\n$`, stdout)
	for n := 1; n <= 2; n++ {
		code, stdout, stderr = e.call(nil, "resume", "--brake", "nightly/backup")
		require.Equal(t, []any{exitOK, "resumed: the brake keeps no lock nightly/backup under /mutexes/\n", ""}, []any{code, stdout, stderr})
		records, err := e.Client.Get(t.Context(), "/unlocker/audit/mutexes/nightly/backup//", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.EqualValues(t, n, records.Count, "each ends what was before it")
	}
	code, _, stderr = e.call(nil, "resume", "--match", "deploy/**")
	require.Equal(t, exitFailure, code)
	require.Equal(t, "unlocker: there is no such pause\n", stderr)
}

// A pause of all locks alone needs no --all to end.
func TestResumeOfTheOnlyPause(t *testing.T) {
	e := newEtcd(t)
	e.call(nil, "pause", "--for", "2h", "--reason", "why")
	code, stdout, stderr := e.call(nil, "resume")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^resumed: all locks under /mutexes/; it was paused until `+instant+` by \S+@\S+: why\n$`, stdout)
	require.Empty(t, e.pauses())
}

// pause list has all pauses, and show those of its lock, also those that no daemon can read.
func TestPausesAreListed(t *testing.T) {
	e := newEtcd(t)
	code, stdout, stderr := e.call(nil, "pause", "list")
	require.Equal(t, exitOK, code)
	require.Empty(t, stdout)
	require.Equal(t, "nothing is paused under /mutexes/\n", stderr)
	_, stdout, _ = e.call(nil, "pause", "list", "-o", "json")
	require.JSONEq(t, `{"pauses": []}`, stdout)

	e.call(nil, "pause", "--match", "deploy/**", "--for", "30m", "--reason", "debugging \x1b")
	e.call(nil, "pause", "--match", "deploy/**", "--for", "30m", "--reason", `debugging "web"`)
	e.call(nil, "pause", "--for", "2d", "--reason", "network")
	code, stdout, stderr = e.call(nil, "pause", "list")
	require.Equal(t, exitOK, code)
	require.Empty(t, stderr)
	require.Regexp(t, `^PAUSED +UNTIL +BY +REASON\n`+
		`all locks +\S+ \S+ UTC  \(in (2d00h|1d23h)\) +\S+@\S+ +network\n`+
		`"deploy/\*\*" +\S+ \S+ UTC  \(in (30m00s|29m\d\ds)\) +\S+@\S+ +debugging "web"\n$`, stdout)

	e.Put(clientv3.OpPut("/unlocker/pause/mutexes/match/\x1b[2J", "x"))
	code, stdout, stderr = e.call(nil, "pause", "list", "-o", "jsonpath={.pauses[*].match} {.pauses[1].reason}")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, `deploy/** "the record /unlocker/pause/mutexes/match/\x1b[2J cannot be read"`, stdout)

	for _, name := range []string{"deploy/web", "billing"} {
		e.Put(clientv3.OpPut("/mutexes/"+name+"/uuid", "u"), clientv3.OpPut("/mutexes/"+name+"/auto_unlock_at", "1795192010"))
		code, stdout, stderr = e.call(nil, "show", name)
		require.Equal(t, exitOK, code, stderr)
		words := strings.Join(strings.Fields(stdout), " ")
		require.Regexp(t, `Paused: Its removal is paused until \S+ \S+ UTC by \S+@\S+: network\.`, words)
		require.Equal(t, name == "deploy/web", strings.Contains(words, `for "deploy/**": debugging "web".`), words)
		require.Contains(t, words, `Paused: All locks are kept: the record /unlocker/pause/mutexes/match/\x1b[2J cannot be read.`)
	}
}

func TestPauseRefusesWhatItCannotMean(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct{ args, want string }{
		{"pause", "--for is required"},
		{"pause --for 1h", "--reason is required"},
		{"pause --reason why", "--for is required"},
		{"pause --for 9s --reason why", "--for: must be 10s to 7d, such as 2h, not 9s"},
		{"pause --for 169h --reason why", "--for: must be 10s to 7d, such as 2h, not 169h0m0s"},
		{"pause --for 8d --reason why", "--for: must be 10s to 7d, such as 2h, not 192h0m0s"},
		{"pause --for 2 --reason why", `"2" is not a duration with a unit, such as 10s, 5m, 1h30m or 2d; see unlocker pause --help`},
		{"pause --for 1h --reason=", "--reason: must say why"},
		{"pause --for 1h --reason " + strings.Repeat("x", 501), "--reason: must be at most 500 bytes"},
		{"pause --for 1h --reason a\x1bb", "--reason: must be one line of text"},
		{"pause --for 1h --reason why --match=", "--match: must not be empty: leave it out for all locks"},
		{"pause --for 1h --reason why --match [", `--match: "[" is not a valid pattern such as deploy/**`},
		{"pause --for 1h --reason why --match /a", `--match: "/a" matches no lock: names exclude the prefix and neither begin nor end with a slash`},
		{"pause deploy/** --for 1h --reason why", `unexpected argument "deploy/**": --match names the locks; see unlocker pause --help`},
		{"resume --match=", "--match: must not be empty: leave it out for all locks"},
		{"resume --match a --all", "--all, --match and --brake exclude each other: --all ends the pause of all locks"},
		{"resume --brake a --all", "--all, --match and --brake exclude each other: --all ends the pause of all locks"},
		{"resume --brake a --match a", "--all, --match and --brake exclude each other: --all ends the pause of all locks"},
		{"resume --brake a//b", `--brake: lock name "a//b" has an empty segment`},
		{"resume --brake=", `--brake: lock name "" is empty`},
		{"pause list all", `unexpected argument "all"; see unlocker pause list --help`},
		{"resume --match {", `--match: "{" is not a valid pattern such as deploy/**`},
		{"resume deploy/**", `unexpected argument "deploy/**": --match names the pattern of the pause; see unlocker resume --help`},
	} {
		code, stdout, stderr := call(t, t.Context(), strings.Fields(c.args)...)
		require.Equal(t, exitUsage, code, c.args)
		require.Empty(t, stdout)
		require.True(t, strings.HasSuffix(stderr, c.want+"\n"), stderr)
		require.Equal(t, 1, strings.Count(stderr, "\n"))
	}
}

// At NOSPACE no lease is granted, and nothing is removed anyway.
func TestPauseWithoutSpace(t *testing.T) {
	e := startEtcd(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	_, _, stderr := e.call(nil, "pause", "--for", "1h", "--reason", "why")
	require.Empty(t, stderr)
	free := e.Fill()
	code, stdout, stderr := e.call(nil, "pause", "--for", "1h", "--reason", "why")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Regexp(t, `^unlocker: etcd at \S+: etcdserver: mvcc: database space exceeded: nothing was paused, since etcd grants no lease; `+
		`while the alarm NOSPACE lasts, and for reaper.settle after it, no lock is removed anyway: pause as soon as it is disarmed\n$`, stderr)
	code, _, stderr = e.call(nil, "resume")
	require.Equal(t, exitOK, code, stderr)
	free()
	code, _, stderr = e.call(nil, "pause", "--for", "1h", "--reason", "why")
	require.Equal(t, exitOK, code, stderr)
}

func TestPauseNeedsItsRight(t *testing.T) {
	e := startEtcd(t, localetcd.Options{})
	e.Guard("ada", "secret", "/mutexes/")
	t.Setenv("UNLOCKER_ETCD_PASSWORD", "secret")
	for _, args := range [][]string{{"pause", "--for", "1h", "--reason", "why"}, {"resume"}} {
		code, stdout, stderr := e.call(nil, append(args, "--etcd-username", "ada")...)
		require.Equal(t, exitFailure, code)
		require.Empty(t, stdout)
		require.Contains(t, stderr, `etcdserver: permission denied: user "ada" needs readwrite on [/unlocker/pause/mutexes/, /unlocker/pause/mutexes0)`)
	}
	leases, err := e.Client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases, "that of the pause was revoked")
}
