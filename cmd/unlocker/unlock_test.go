package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestUnlockCommand(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, time.Hour)
	e.take("a/b", time.Hour, time.Hour)

	code, stdout, stderr := e.call(nil, "unlock", "a", "--uuid", "u-b", "--yes")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Regexp(t, `(?s)^Name: +a\n.*UUID: +u-a\n.*\nunlocker: lock "a" is held under another uuid: nothing was removed\n$`, stderr)
	require.Len(t, e.Keys(""), 12)

	code, stdout, stderr = e.call(nil, "unlock", "a", "--uuid", "u-a", "--yes")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^lock a removed at revision \d+ \(uuid u-a\)\n$`, stdout)
	require.Regexp(t, `^Name: +a\n`, stderr, "the holder")
	require.NotContains(t, stderr, "[y/N]")
	require.Len(t, e.Keys(""), 6)

	code, stdout, stderr = e.call(nil, "unlock", "a", "--uuid", "u-a", "--yes")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Equal(t, "unlocker: no lock \"a\" under /mutexes/; there are locks below it: \"a/b\"\n", stderr)

	_, stdout, _ = e.call(nil, "unlock", "a/b", "--uuid", "u-a/b", "--reason", "OPS-1", "-y", "-o", "json")
	var removed api.Forced
	require.NoError(t, json.Unmarshal([]byte(stdout), &removed))
	require.Equal(t, "a/b", removed.Name)
	require.Equal(t, "OPS-1", removed.Reason)
	require.Len(t, removed.Fields, 6)
	require.Empty(t, e.Keys(""))
}

// What is removed is shown before, to its end.
func TestUnlockShowsAllOfIt(t *testing.T) {
	e := newEtcd(t)
	e.Set("a", "uuid", "u", "backtrace", strings.Repeat("frame\n", 200)+"the end\n")
	_, shown, _ := e.call(nil, "show", "a")
	require.NotContains(t, shown, "the end")
	_, _, stderr := e.call(nil, "unlock", "a", "--uuid", "u", "--yes")
	require.Contains(t, stderr, "the end")
}

// With a device for stdin that is none of a person.
func TestUnlockWithoutAnAnswer(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, time.Hour)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	code, stdout, stderr := e.call(null, "unlock", "a", "--uuid", "u-a")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "Remove lock a, held by billing on worker-1? Its holder may still be working. [y/N] ")
	require.Contains(t, stderr, "unlocker: no answer: nothing was removed; --yes is required when stdin is not a terminal\n")
	require.Len(t, e.Keys(""), 6)
}

// Without space for a record the person is told, and asked unless they said --yes.
func TestUnlockCommandAtFullQuota(t *testing.T) {
	e := startEtcd(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	e.take("a", time.Hour, time.Hour)
	e.Fill()
	const none = "etcd refuses the record of this unlock, so that none is left: etcdserver: mvcc: database space exceeded\n"
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	code, _, stderr := e.call(null, "unlock", "a", "--uuid", "u-a")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "\n"+none+"\nRemove lock a, held by billing on worker-1, without a record? Its holder may still be working. [y/N] ")
	require.Len(t, e.Keys(""), 6)
	code, stdout, stderr := e.call(nil, "unlock", "a", "--uuid", "u-a", "--yes")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "lock a removed at revision ")
	require.Contains(t, stderr, none)
	require.NotContains(t, stderr, "[y/N]")
	require.Empty(t, e.Keys(""))
}

func TestUnlockRefusesReasons(t *testing.T) {
	e := newEtcd(t)
	for _, reason := range []string{strings.Repeat("x", 513), "\xff"} {
		code, _, stderr := e.call(nil, "unlock", "a", "--uuid", "u", "--reason", reason, "--yes")
		require.Equal(t, exitUsage, code)
		require.Equal(t, "unlocker: --reason must be UTF-8 of at most 512 bytes\n", stderr)
	}
}

func TestAsk(t *testing.T) {
	for answer, allowed := range map[string]bool{
		"y\n": true, "Y\n": true, "yes\n": true, " yes \r\n": true, "y": true,
		"n\n": false, "\n": false, "": false, "yep\n": false, "no y\n": false, strings.Repeat("y", 1000): false,
	} {
		err := ask(t.Context(), strings.NewReader(answer))
		require.Equal(t, allowed, err == nil, "%q", answer)
		if !allowed {
			require.ErrorContains(t, err, "nothing was removed")
		}
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	require.ErrorIs(t, ask(ctx, r), admin.ErrInterrupted)
	require.NoError(t, w.Close()) // ends the read
	require.False(t, isTerminal(r))
	require.False(t, isTerminal(strings.NewReader("")))
}
