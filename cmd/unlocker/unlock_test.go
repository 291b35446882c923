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

// Nothing is removed unless the user knows how many locks match. Each that is removed has a line.
func TestUnlockManyCommand(t *testing.T) {
	e := newEtcd(t)
	hostile := "n/\x1b[2J\nremoved"
	for _, name := range []string{"n/a", hostile, "other"} {
		e.take(name, time.Hour, time.Hour)
	}
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	unlock := []string{"unlock", "--match", "n/*", "--reason", "OPS-1"}
	code, stdout, stderr := e.call(null, unlock...)
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "\nRemove these 2 locks? Their holders may still be working. Their number, to confirm: unlocker: no answer: nothing was removed")
	require.Regexp(t, `(?m)^n/a +held `, stderr)
	require.NotContains(t, stderr, "\x1b")
	code, _, stderr = e.call(nil, append(unlock, "--yes", "--count", "3")...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "unlocker: 2 locks match, not 3: nothing was removed\n")
	code, _, stderr = e.call(nil, "unlock", "--match", "none/*", "--reason", "r", "--yes", "--count", "0")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "none of the 3 locks under /mutexes/ matches and is held: nothing was removed\n")
	require.Len(t, e.Keys(""), 18)

	code, stdout, stderr = e.call(nil, append(unlock, "--yes", "--count", "2")...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "n/a removed at revision ")
	require.Contains(t, stdout, `"n/\x1b[2J\nremoved" removed at revision `)
	require.Regexp(t, `(?m)^2/2 `, stdout)
	require.True(t, strings.HasSuffix(stderr, "\n2 locks removed\n"), stderr)
	require.Len(t, e.Keys(""), 6)
	_, stdout, _ = e.call(nil, "unlock", "--match", "**", "--reason", "OPS-1", "--yes", "--count", "1", "-o", "json")
	var line api.Unlocked
	require.NoError(t, json.Unmarshal([]byte(stdout), &line))
	require.NotZero(t, line.Revision)
	line.Revision = 0
	require.Equal(t, api.Unlocked{Name: "other", UUID: "u-other", Outcome: "removed", Total: 1, Removed: 1}, line)
	require.Empty(t, e.Keys(""))
}

func TestTheNumberOfLocksIsTyped(t *testing.T) {
	for answer, allowed := range map[string]bool{"12\n": true, " 12 \n": true, "1\n": false, "y\n": false, "12 13\n": false, "": false} {
		require.Equal(t, allowed, ask(t.Context(), strings.NewReader(answer), "12") == nil, "%q", answer)
	}
}

func TestAsk(t *testing.T) {
	for answer, allowed := range map[string]bool{
		"y\n": true, "Y\n": true, "yes\n": true, " yes \r\n": true, "y": true,
		"n\n": false, "\n": false, "": false, "yep\n": false, "no y\n": false, strings.Repeat("y", 1000): false,
	} {
		err := ask(t.Context(), strings.NewReader(answer), "y", "yes")
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
	require.ErrorIs(t, ask(ctx, r, "y", "yes"), admin.ErrInterrupted)
	require.NoError(t, w.Close()) // ends the read
	require.False(t, isTerminal(r))
	require.False(t, isTerminal(strings.NewReader("")))
}
