package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// serve runs the daemon, with flags, and returns the URL of its API.
func (e etcd) serve(flags ...string) string {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	log, written := io.Pipe()
	done := make(chan int, 1)
	root := newRoot()
	root.SetErr(written)
	go func() {
		code := run(ctx, root, append([]string{"serve", "--etcd-endpoints", e.Endpoints()[0], "--ops-listen=127.0.0.1:0", "--web-listen=127.0.0.1:0",
			"--reaper-settle=1h"}, flags...)) // nothing is removed while a test looks, unless a flag says so
		_ = written.Close()
		done <- code
	}()
	addresses := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			var line struct{ Msg, Web string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == api.LogStarted {
				addresses <- line.Web
			}
		}
	}()
	e.t.Cleanup(func() {
		cancel()
		require.Equal(e.t, exitOK, <-done)
	})
	return "http://" + <-addresses
}

// awaitListed waits until a daemon has listed the locks.
func (e etcd) awaitListed(url string) {
	e.t.Helper()
	require.Eventually(e.t, func() bool {
		code, _, _ := callIn(e.t.Context(), nil, "check", "--url", url)
		return code != 2
	}, 30*time.Second, 50*time.Millisecond)
}

// What a daemon knows, and etcd does not.
func TestExplanationsOfADaemon(t *testing.T) {
	e := newEtcd(t)
	e.take("expired", -time.Minute, -30*time.Second)
	e.take("held", time.Hour, time.Hour)
	e.Set("undated", "uuid", "u")
	url := e.serve()
	e.awaitListed(url)
	const waits = `waits until .* learned late, patience \S+; removals on hold since .*: settling until \S+ after the first listing, and since .*`

	code, stdout, stderr := e.call(nil, "show", "expired", "--url", url, "-o", "json")
	require.Equal(t, exitOK, code, stderr)
	var d api.LockDetail
	require.NoError(t, json.Unmarshal([]byte(stdout), &d))
	require.Regexp(t, "^"+waits+"$", d.Explanation)
	require.NotNil(t, d.Verdict)
	require.False(t, d.Due.IsZero())
	code, stdout, stderr = e.call(nil, "show", "held", "--url", url)
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `\nRemoval: +The lock is removed at .+ unless its holder renews it:\s`, stdout)

	code, stdout, stderr = e.call(nil, "list", "-o", "wide", "--url", url)
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^NAME .* EXPLANATION\nexpired .*   `+waits+`\nheld .*   -   +-\nundated .*   is never removed automatically: there is no auto_unlock_at\n$`, stdout)
	_, stdout, _ = callIn(t.Context(), nil, "check", "-v", "--url", url)
	require.Regexp(t, `\nexpired: expired, .*; `+waits+`\n`, stdout)
}

// Whether the holder is alive, a daemon knows once it has seen its rhythm.
func TestSilentHoldersOfADaemon(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, time.Hour)
	e.take("unrenewed", time.Hour, time.Hour)
	url := e.serve()
	e.awaitListed(url)
	_, stdout, _ := e.call(nil, "show", "a", "--url", url)
	require.Contains(t, stdout, "\nAlive:       not known: the daemon has seen no rhythm of renewals\n")
	etcdtest.Eventually(t, func() bool {
		e.Renew("a", time.Now(), time.Now().Add(time.Hour))
		_, stdout, _ = e.call(nil, "show", "a", "--url", url)
		return strings.Contains(stdout, "\nAlive:       renewed ")
	}, "the daemon sees no rhythm")
	require.Regexp(t, `\nAlive: +renewed \d+s ago, every \S+\n`, stdout)
	etcdtest.Eventually(t, func() bool {
		_, stdout, _ = e.call(nil, "list", "--silent", "-o", "wide", "--no-headers", "--url", url)
		return stdout != ""
	}, "the daemon knows no silent holder")
	require.Regexp(t, `^a .*   not renewed for \d+s, \d+ missed, every \S+ before   +-\n$`, stdout)
	_, stdout, _ = e.call(nil, "list", "--url", url)
	require.Regexp(t, `UNLOCK +WAITERS +RENEWALS\na .*   not renewed for \d+s, \d+ missed, every \S+ before\nunrenewed .* -\n$`, stdout)
	code, stdout, stderr := e.call(nil, "list", "--silent", "-o", "json", "--url", url)
	require.Equal(t, exitOK, code, stderr)
	var page api.LockPage
	require.NoError(t, json.Unmarshal([]byte(stdout), &page))
	require.Len(t, page.Locks, 1)
	require.True(t, page.Locks[0].Silent())
	code, stdout, stderr = e.call(nil, "list", "--silent", "--url", "http://127.0.0.1:1")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout, "not all of them")
	require.Contains(t, stderr, "does not answer")

	silent := []string{"unlock", "--match", "**", "--silent", "--reason", "OPS-1", "--count", "1", "--yes", "--url"}
	code, stdout, stderr = e.call(nil, append(silent, "http://127.0.0.1:1")...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "does not answer")
	require.Empty(t, stdout)
	code, stdout, stderr = e.call(nil, append(silent, url)...)
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^1/1 a removed at revision \d+ \(uuid u-a\)\n$`, stdout)
	require.Len(t, e.Keys(""), 6, "the other one may be alive")
	code, _, stderr = e.call(nil, append(silent, url)...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "none of the 1 locks under /mutexes/ matches and is held by a silent holder: nothing was removed")
}

// show has what etcd holds, whatever the daemon does.
func TestNoExplanation(t *testing.T) {
	e := newEtcd(t)
	e.take("a", -time.Minute, -30*time.Second)
	code, stdout, stderr := e.call(nil, "show", "a")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `\nRemoval: +Only a daemon knows whether and when it removes the lock\. To ask one:\n +unlocker show --url http://HOST:9481 NAME\nUUID: +u-a\n`, stdout)
	_, stdout, _ = e.call(nil, "list", "-o", "wide")
	require.NotContains(t, stdout, "EXPLANATION")

	const nowhere = "http://127.0.0.1:1"
	for _, args := range [][]string{{"show", "a"}, {"list", "-o=wide"}, {"list", "-o=json"}} {
		code, plain, _ := e.call(nil, args...)
		require.Equal(t, exitOK, code)
		code, stdout, stderr := e.call(nil, append(args, "--url", nowhere)...)
		require.Equal(t, exitFailure, code)
		require.Regexp(t, "^unlocker: no explanation: http://127.0.0.1:1 does not answer: dial tcp .* connection refused\n$", stderr)
		times := regexp.MustCompile(`[0-9.]+m?[0-9.]+s?`)
		require.Equal(t, times.ReplaceAllString(plain, ""), times.ReplaceAllString(stdout, ""), "but for the times the same")
	}
}

// The clock that a daemon has observed counts, for list, list --watch, show and history alike.
func TestCommandsGoByTheClocksOfADaemon(t *testing.T) {
	e := newEtcd(t)
	url := e.serve()
	e.awaitListed(url)
	const slow = -95 * time.Second
	at := func(d time.Duration) string { return etcdtest.Stamp(time.Now().Add(slow + d)) }
	e.Set("slow", "uuid", "u", "hostname", "worker-7", "locked_at", at(0))
	var alive, deadline string
	renew := func() {
		alive, deadline = at(0), at(time.Minute)
		e.Set("slow", "alert_at", deadline, "auto_unlock_at", deadline, "alive_at", alive)
	}
	etcdtest.Eventually(t, func() bool { // until the daemon observes live
		renew()
		code, stdout, _ := callIn(t.Context(), nil, "show", "slow", "--url", url, "-o", "jsonpath={.clock_offset}", "--etcd-endpoints", e.Endpoints()[0])
		return code == exitOK && stdout != ""
	}, "the daemon observes no clock")

	for _, args := range [][]string{{}, {"-o", "wide"}} {
		code, stdout, stderr := e.call(nil, append([]string{"list", "--no-headers", "--url", url, "--state", "held"}, args...)...)
		require.Equal(t, exitOK, code, stderr)
		require.Regexp(t, `^slow +held +worker-7 .* in (1m0)?\d+s \(clock 1m3[3-7]s slow\)`, stdout)
	}
	lines, _ := start(t, "list", "--watch", "--no-headers", "--url", url, "--etcd-endpoints", e.Endpoints()[0])
	require.Regexp(t, `^slow +held .* \(clock 1m3[3-7]s slow\) +-$`, lines.await(t, 1)[0])
	code, stdout, stderr := e.call(nil, "show", "slow", "--url", url)
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `\nState: +held\n(?s:.*)\nRenewed: .* \((\d+s ago|now)\)\nAlive: .*\nAlert: .* \(in (1m0)?\d+s\)\nAuto-unlock: .* \(in (1m0)?\d+s\)\nClock: +The holder's clock is 1m3[3-7]s slow`, stdout)
	var h api.History
	code, stdout, stderr = e.call(nil, "history", "slow", "--url", url, "-o", "json")
	require.Equal(t, exitOK, code, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &h))
	require.InDelta(t, slow.Seconds(), h.Periods[0].ClockOffset, 2)
	require.WithinDuration(t, time.Now(), h.Periods[0].Acquired.At, time.Minute)
	_, stdout, _ = e.call(nil, "history", "slow", "--url", url)
	require.Regexp(t, `\n\S+ \S+ \(clock 1m3[3-7]s slow\) +\d+s `, stdout)
}
