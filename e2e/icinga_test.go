//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// The shipped configuration is valid, with the shipped example of a host and with a host whose
// checks run on another endpoint.
func TestIcingaValidates(t *testing.T) {
	example, err := os.ReadFile("../deploy/icinga/host-example.conf")
	require.NoError(t, err)
	i := newIcinga(t, string(example)+`
object Endpoint "agent" { }
object Zone "agent" { endpoints = [ "agent" ]; parent = NodeName }
object Host "agent" {
  check_command = "dummy"
  zone = NodeName
  vars.unlocker_url = "http://127.0.0.1:9481"
  vars.unlocker_endpoint = name
  vars.unlocker_locks["bang"] = { unlocker_lock = "a!b$$c" }
}
object Host "without unlocker" { check_command = "dummy" }
`)
	i.certify()
	out := i.validate()
	require.Contains(t, out, "Instantiated 3 Hosts.")
	require.Contains(t, out, "Instantiated 5 Services.")
	require.Contains(t, out, "Finished validating")
	require.NotContains(t, out, "warning/")
	require.NotContains(t, out, "critical/")
}

// Icinga runs the plugin against a daemon, and shows the right states and outputs.
func TestIcinga(t *testing.T) {
	etcd := startEtcd(t, newest)
	d := startDaemon(t, etcd.addr)
	web := "http://" + d.line(api.LogStarted)["web"].(string)
	etcd.putLocks("icinga", 1, time.Now().Add(-3*time.Hour), time.Now().Add(time.Hour))
	const name = "icinga/00000"
	i := newIcinga(t, fmt.Sprintf(`
object Host "locks" {
  check_command = "dummy"
  vars.unlocker_url = %q
  vars.unlocker_critical = "@5:"
  vars.unlocker_locks["single"] = { unlocker_lock = %q }
  vars.unlocker_locks["not/held"] = { unlocker_forced_minutes = 0 }
}
`, web, name))
	i.run()

	late := i.await("unlocker", "UNLOCKER WARNING: 1 of 1 lock overdue: icinga/00000 (worker-1.example.org, 3h0")
	require.EqualValues(t, 1, late.State)
	require.EqualValues(t, 1, late.ExitStatus)
	require.Equal(t, []string{"overdue=1;0;@5:;0", "locks_held=0;;;0", "locks_overdue=1;;;0", "locks_expired=0;;;0", "locks_undated=0;;;0",
		"locks_malformed=0;;;0", "locks_orphaned=0;;;0", "backlog=0;;;0", "forced=0;0;;0"}, late.Performance)
	require.Contains(t, late.Output, "\nicinga/00000: overdue, 3h0")
	require.Contains(t, late.Output, "; held by worker-1.example.org since ")
	require.Contains(t, late.Output, "; etcd revision ")
	require.NotContains(t, late.Output, "|")
	single := i.await("unlocker-single", "UNLOCKER WARNING: icinga/00000 is overdue by 3h0")
	require.EqualValues(t, 1, single.State)
	free := i.await("unlocker-not/held", "UNLOCKER OK: not/held is not held")
	require.EqualValues(t, 0, free.State)
	require.Equal(t, []string{"held=0;;;0", "age=0s;;;0", "past_alert=0s;;;0"}, free.Performance)

	_, err := etcd.client.Delete(t.Context(), prefix+name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.EqualValues(t, 0, i.await("unlocker", "UNLOCKER OK: 0 locks, none overdue").State)
	require.EqualValues(t, 0, i.await("unlocker-single", "UNLOCKER OK: icinga/00000 is not held").State)

	past := time.Now().Add(-time.Minute)
	evil := lock("evil|state=0 $(reboot)\n'x", past, past)
	_, err = etcd.client.Txn(t.Context()).Then(evil...).Commit()
	require.NoError(t, err)
	etcd.awaitGone("evil")
	forced := i.await("unlocker", "UNLOCKER WARNING: 1 forced unlock in the last 1h00m: evilstate=0 (reboot) x (worker-1.example.org, ")
	require.Contains(t, forced.Performance, "forced=1;0;;0")
	require.Len(t, forced.Performance, 9)

	etcd.kill()
	require.EqualValues(t, 2, i.await("unlocker", "UNLOCKER CRITICAL: no daemon reports on the locks: "+web+" cannot reach etcd").State)
	require.EqualValues(t, 2, i.await("unlocker-single", "UNLOCKER CRITICAL: no daemon reports on the locks: "+web+" cannot reach etcd").State)
	d.kill()
	require.EqualValues(t, 2, i.await("unlocker", "UNLOCKER CRITICAL: no daemon reports on the locks: "+web+" does not answer").State)
}

// Every flag of the plugin has a variable, whose value is passed to the plugin.
func TestIcingaPassesAllFlags(t *testing.T) {
	help, err := exec.CommandContext(t.Context(), unlocker, "check", "--help").Output()
	require.NoError(t, err)
	var flags []string
	for _, m := range regexp.MustCompile(`(?m)^ {2,6}(?:-\w, +)?--([a-z-]+)`).FindAllStringSubmatch(string(help), -1) {
		if m[1] != "help" {
			flags = append(flags, m[1])
		}
	}
	require.Greater(t, len(flags), 10)

	vars, wanted := "", []string{"check"}
	for n, flag := range flags {
		if flag == "lock" {
			continue // services for single locks pass it
		}
		value := strconv.Itoa(n)
		variable := "vars.unlocker_" + strings.ReplaceAll(flag, "-", "_")
		switch flag {
		case "verbose":
			wanted = append(wanted, "--verbose")
			continue // on by default
		case "url":
			vars += variable + " = [ \"http://a\", \"http://b\" ]\n"
			wanted = append(wanted, "--url", "http://a", "--url", "http://b")
			continue
		case "critical":
			value = "" // an empty range is passed, too
		}
		vars += fmt.Sprintf("  %s = %q\n", variable, value)
		wanted = append(wanted, "--"+flag, value)
	}
	i := newIcinga(t, `object Host "locks" {`+"\n check_command = \"dummy\"\n"+vars+` vars.unlocker_locks["a b"] = { unlocker_verbose = false }`+"\n}\n")
	i.run()
	for service, c := range map[string]struct {
		without []string
		more    []string
	}{
		"unlocker":     {nil, nil},
		"unlocker-a b": {[]string{"--warning", "--critical", "--undated", "--verbose"}, []string{"--lock", "a b"}},
	} {
		got := i.await(service, "UNLOCKER UNKNOWN: ").Command
		require.Equal(t, filepath.Join(i.dir, "unlocker"), got[0])
		want := slices.Concat(pairs(wanted, c.without), pairs(c.more, nil))
		require.ElementsMatch(t, want, pairs(got[1:], nil), service)
	}
}

// pairs joins each flag with its values, without the flags in without. The order of Icinga's
// flags is not defined.
func pairs(args, without []string) (joined []string) {
	for _, arg := range args {
		if strings.HasPrefix(arg, "--") || len(joined) == 0 {
			joined = append(joined, arg)
		} else {
			joined[len(joined)-1] += "=" + arg
		}
	}
	return slices.DeleteFunc(joined, func(flag string) bool {
		return slices.ContainsFunc(without, func(w string) bool { return flag == w || strings.HasPrefix(flag, w+"=") })
	})
}
