package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

func TestShowCommand(t *testing.T) {
	e := newEtcd(t)
	e.take("billing/invoices", -time.Minute, time.Hour)
	e.Set("billing/invoices", "purpose", "invoices\x1b[2J", "backtrace", "a.go:1\nmain.go:2")

	code, stdout, stderr := e.call(nil, "show", "billing/invoices")
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, stderr)
	require.Regexp(t, `(?s)^Name: +billing/invoices\nState: +overdue\n.*UUID: +u-billing/invoices\nHostname: +worker-1\n`, stdout)
	require.Regexp(t, `\nLocked: +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  \(1m[345]\ds ago\)\n`, stdout)
	require.Regexp(t, `\nAuto-unlock: .* UTC  \(in \S+\)\n`, stdout)
	require.Regexp(t, `\nPurpose: +"invoices\\x1b\[2J"\n`, stdout)
	require.Contains(t, stdout, "\nBacktrace:\n  a.go:1\n  main.go:2\n")

	_, stdout, _ = e.call(nil, "show", "billing/invoices", "-o", "json")
	var d api.LockDetail
	require.NoError(t, json.Unmarshal([]byte(stdout), &d))
	require.Equal(t, "overdue", d.State)
	require.Len(t, d.Fields, 8)

	code, stdout, stderr = e.call(nil, "show", "billing")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Equal(t, "unlocker: no lock \"billing\" under /mutexes/; there are locks below it: \"billing/invoices\"\n", stderr)
}

// show accepts names in the form in which list prints them.
func TestShowTakesWhatListPrints(t *testing.T) {
	e := newEtcd(t)
	for _, name := range []string{"evil\n\x1b[2J\u202e", `"quoted"`, " ", "日本/語", `back\slash`} {
		e.Set(name, "uuid", "u")
		_, listed, _ := e.call(nil, "list", "-o", "name")
		code, shown, stderr := e.call(nil, "show", listed[:len(listed)-1], "-o", "name")
		require.Equal(t, exitOK, code, stderr)
		require.Equal(t, listed, shown)
		code, _, stderr = e.call(nil, "unlock", shown[:len(shown)-1], "--uuid", "u", "--yes")
		require.Equal(t, exitOK, code, stderr)
	}
	require.Empty(t, e.Keys(""))
}

func TestDeadlocksCommand(t *testing.T) {
	e := newEtcd(t)
	code, stdout, stderr := e.call(nil, "deadlocks")
	require.Equal(t, exitOK, code)
	require.Empty(t, stdout)
	require.Equal(t, "no deadlock under /mutexes/\n", stderr)

	e.take("a", time.Hour, time.Hour)
	e.take("b\n\x1b[2J", time.Hour, 2*time.Hour)
	e.Set("a", "backtrace", "run.go:112 lock\x1b[2J\nmain.go:31 main")
	const tickets = "/unlocker/waiters/mutexes/"
	e.Put(clientv3.OpPut(tickets+"b\n\x1b[2J//1", `{"uuid": "u", "hostname": "h\u202e", "holds": ["u-a"]}`), clientv3.OpPut(tickets+"a//2", `{"uuid": "u", "holds": ["u-b\n\u001b[2J"]}`))
	code, stdout, stderr = e.call(nil, "deadlocks")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stderr)
	require.Regexp(t, `^Deadlock 1: 2 flows wait for each other\. Their first lock expires: \S+ \S+ UTC  \(in (59m|1h)\S+\)
  an unnamed process on "h\\u202e" \(pid unknown\) holds a and waits for "b\\n\\x1b\[2J"
    taken at "run\.go:112 lock\\x1b\[2J"
  an unnamed process on an unknown host \(pid unknown\) holds "b\\n\\x1b\[2J" and waits for a
$`, stdout)
	_, stdout, _ = e.call(nil, "deadlocks", "-o", "jsonpath={.deadlocks[0].flows[*].lock}")
	require.Contains(t, stdout, "a")
	code, _, stderr = e.call(nil, "deadlocks", "a")
	require.Equal(t, exitUsage, code, stderr)
}
