package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// printed is what a command has printed so far.
type printed struct{ etcdtest.Log }

// await waits for a number of lines, and returns them.
func (p *printed) await(t *testing.T, lines int) []string {
	t.Helper()
	etcdtest.Eventually(t, func() bool { return strings.Count(p.String(), "\n") >= lines }, "%s", p)
	all := strings.Split(strings.TrimSuffix(p.String(), "\n"), "\n")
	require.Len(t, all, lines, p)
	return all
}

// start runs a command until the test ends.
func start(t *testing.T, args ...string) (stdout, stderr *printed) {
	t.Helper()
	stdout, stderr = &printed{}, &printed{}
	root := newRoot()
	root.SetOut(stdout)
	root.SetErr(stderr)
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- run(ctx, root, args) }()
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-code)
	})
	return stdout, stderr
}

// silence is a time after which an outage is noticed, and which a busy machine does not take.
const silence = "--etcd-request-timeout=10s"

func TestListWatchPrintsLines(t *testing.T) {
	e := newEtcd(t)
	proxy := e.Proxy(0)
	const soon = 30 * time.Second // what is left for a busy machine
	e.take("a", time.Hour+soon, 2*time.Hour+soon)
	list := func(args ...string) (stdout, stderr *printed) {
		return start(t, append(args, "--etcd-endpoints", proxy.Addr(), silence)...)
	}
	table, words := list("list", "--watch")
	data, _ := list("list", "-w", "-ojson")
	names, _ := list("list", "-w", `-ojsonpath={.type} {.name} {.lock.state}`)
	untitled, _ := list("list", "-w", "--no-headers")
	lines := table.await(t, 2)
	require.Regexp(t, `^NAME   STATE +HOSTNAME +OWNER +HELD +ALERT +UNLOCK +WAITERS$`, lines[0])
	require.Regexp(t, `^a      held +worker-1 +billing +1m[345]\ds +in 1h00m +in 2h00m +-$`, lines[1])
	require.Regexp(t, `^a   held `, untitled.await(t, 1)[0])

	e.Set("evil\n\x1b[2J", "uuid", "u", "owner", "\u202e")
	require.Regexp(t, `^"evil\\n\\x1b\[2J"   undated +-`, table.await(t, 3)[2])
	_, err := e.Client.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Regexp(t, `^a +gone +worker-1 +billing +\dm\d\ds +- +- +-$`, table.await(t, 4)[3])

	var events []map[string]any
	for _, line := range data.await(t, 3) {
		require.NotContains(t, line, "\u202e")
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		events = append(events, event)
	}
	require.Equal(t, "u-a", events[0]["lock"].(map[string]any)["uuid"])
	require.Equal(t, []any{"lock", "evil\n\x1b[2J"}, []any{events[1]["type"], events[1]["name"]})
	require.Equal(t, map[string]any{"type": "gone", "name": "a"}, events[2])
	require.Equal(t, []string{"lock a held", `lock "evil\n\x1b[2J" undated`, "gone a "}, names.await(t, 3))

	require.Empty(t, words.String())
	proxy.Cut()
	etcdtest.Eventually(t, func() bool {
		return strings.Contains(words.String(), "unlocker: watch failed; relisting: etcd at "+proxy.Addr()+": no connection: ")
	})
	e.take("b", time.Hour, 2*time.Hour)
	require.NoError(t, proxy.Heal())
	require.Regexp(t, `^b +held +worker-1`, table.await(t, 5)[4])
	require.Contains(t, words.String(), " UTC unlocker: watching again\n")
}
