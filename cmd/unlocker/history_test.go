package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// Who held it, how each lost it, and what only a daemon knows.
func TestHistoryCommand(t *testing.T) {
	e := newEtcd(t)
	const name = "billing/invoices"
	now := time.Now()
	e.Put(e.Lock(name, now, now.Add(-5*time.Minute), "uuid", "first", "locked_at", etcdtest.Stamp(now.Add(-10*time.Minute)))...)
	_, err := e.Client.Delete(t.Context(), e.Prefix, clientv3.WithPrefix()) // by an unknown client, before the daemon, which could know when
	require.NoError(t, err)
	url := e.serve()
	e.awaitListed(url)
	e.take(name, time.Hour, time.Hour)
	code, _, stderr := e.call(nil, "unlock", name, "--uuid", "u-"+name, "--yes", "--reason", "OPS-1")
	require.Equal(t, exitOK, code, stderr)
	e.take(name, time.Hour, 2*time.Hour)
	e.Renew(name, time.Now(), time.Now().Add(time.Hour))

	code, stdout, stderr := e.call(nil, "history", name)
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^ACQUIRED \(UTC\)  HELD +RENEWED  TOKEN  HOSTNAME  ENDED
\d\d-\d\d \d\d:\d\d:\d\d  1m[345]\ds +1        \d+ +worker-1  -
\d\d-\d\d \d\d:\d\d:\d\d  1m[345]\ds +0        \d+ +worker-1  manual
    ended \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by \S+@\S+: OPS-1
\d\d-\d\d \d\d:\d\d:\d\d  <=8m[345]\ds +0        \d+ +worker-1  removed
$`, stdout)
	require.Contains(t, stderr, "removed: deleted; no time shows whether that was before its deadline, and etcd does not keep by whom\n")
	require.Contains(t, stderr, "--url asks one\n")
	for _, line := range strings.Split(stdout, "\n") {
		require.LessOrEqual(t, len(line), 80)
	}

	var h api.History
	require.Eventually(t, func() bool {
		code, stdout, stderr = e.call(nil, "history", name, "--url", url, "-o", "json")
		require.Equal(t, exitOK, code, stderr)
		h = api.History{}
		require.NoError(t, json.Unmarshal([]byte(stdout), &h))
		return h.Periods[1].Ended.By != ""
	}, time.Minute, 50*time.Millisecond)
	require.NotContains(t, stderr, "--url asks one")
	require.Nil(t, h.Periods[0].Ended)
	require.Len(t, h.Periods[0].Renewals, 1)
	require.Equal(t, api.EndManual, h.Periods[1].Ended.How)
	require.Equal(t, "OPS-1", h.Periods[1].Ended.Reason)
	require.Equal(t, api.EndRemoved, h.Periods[2].Ended.How)
	require.Less(t, h.Periods[2].Token, h.Periods[1].Token)

	code, stdout, stderr = e.call(nil, "history", name, "--limit", "1", "-o", "wide")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `OWNER +PURPOSE +MARGIN +REVISIONS +UUID\n.* billing +- +\d+% +\d+- +u-billing/invoices\n$`, stdout)
	require.Regexp(t, `^revisions before \d+ were not read: see --limit and --timeout\n$`, stderr)
}

func TestHistoryOfNoLock(t *testing.T) {
	e := newEtcd(t)
	revision := e.Set("a", "uuid", "u")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"history", "b"}, exitFailure, `nobody ever held lock "b" under /mutexes/: no such lock`},
		{[]string{"history", "a", "--limit", "0"}, exitUsage, "--limit must be 1 to 1000"},
		{[]string{"history", "a", "--timeout", "2h"}, exitUsage, "--timeout must be 1s to 1h0m0s"},
		{[]string{"history", "/mutexes/a"}, exitUsage, "is a key"},
		{[]string{"history"}, exitUsage, "requires the name of one lock"},
		{[]string{"history", "a", "--url", "http://127.0.0.1:1"}, exitFailure, "does not answer"},
	} {
		code, _, stderr := e.call(nil, c.args...)
		require.Equal(t, c.code, code, stderr)
		require.Contains(t, stderr, c.want)
	}
	_, err := e.Client.Compact(t.Context(), revision)
	require.NoError(t, err)
	code, _, stderr := e.call(nil, "history", "b")
	require.Equal(t, exitFailure, code)
	require.Regexp(t, `nobody held lock "b" under /mutexes/ since revision \d+: no such lock: etcd has nothing older, it was compacted`, stderr)
	code, stdout, stderr := e.call(nil, "history", "a")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "\n-               -     0        ", "a lock without times")
	require.Regexp(t, `^etcd was compacted: what was before revision \d+ cannot be known\n$`, stderr)
}
