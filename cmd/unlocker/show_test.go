package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
