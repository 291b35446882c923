package main

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func TestMain(m *testing.M) {
	if fault := os.Getenv(faultVariable); fault != "" {
		os.Exit(serve(fault, os.Stdin, os.Stdout)) //nolint:forbidigo // this process is the client
	}
	etcdtest.Main(m)
}

// fault is what a client does wrong, the check that must notice it, and what it says.
type fault struct{ check, does, says string }

func faults() []fault {
	return []fault{
		{"lock", "writes the deadline later", "auto_unlock_at of \"billing/invoices\" was not written in the transaction of the uuid"},
		{"lock-deadlines", "writes milliseconds", "locked_at: outside"},
		{"lock-atomic", "reads, then writes", "changed the lock \"billing/invoices\" of another"},
		{"lock-held", "writes to a held lock", "changed the lock \"billing/invoices\" of another"},
		{"lock-held", "forgets the holder", "the holder has uuid=\"\""},
		{"leftovers", "reads leftovers", "the holder has purpose=\"purpose\""},
		{"uuid", "has one uuid", "two acquisitions have the same uuid"},
		{"uuid", "writes the uuid again", "alive has written the uuid"},
		{"token", "takes the cluster's id for the token", "the token is"},
		{"names", "accepts any name", "lock of the invalid name \"\" answered ok"},
		{"names", "escapes names", "but etcd has {}"},
		{"try-lock-all", "takes all or nothing", "try_lock_all failed: error \"held\""},
		{"quit", "exits with 1", "exit status 1"},
		{"alive", "writes no alive_at", "alive has not written alive_at"},
		{"alive", "writes alive_at later", "were not written in one transaction"},
		{"alive-compared", "compares nothing", "changed the lock \"billing/invoices\" of another"},
		{"answer", "renews when it is asked", "an answer has written auto_unlock_at"},
		{"answer", "answers each question", "it answered more than once within"},
		{"unlock", "unlocks by prefix", "changed the lock \"billing/invoices/november\" of another"},
		{"unlock", "unlocks in two steps", "7 keys were not deleted by one transaction, which left {"},
		{"unlock", "leaves alive_at", "there are keys of \"billing/invoices\" which nobody holds"},
		{"unlock-compared", "compares nothing", "changed the lock \"billing/invoices\" of another"},
		{"wait", "polls", "requests within 5s while it waited"},
		{"wait", "lets its ticket expire", "the lease of its ticket ends in"},
		{"wait", "polls slowly", "the waiter did not take the lock within 1.5s after it was free"},
		{"wait-timeout", "waits longer than asked", "it was to wait 2s, but waited "},
		{"wait-revision", "watches from now on", "the waiter did not take the lock within 4s"},
		{"wait-revision", "watches from now on once it has a ticket", "the waiter did not take the lock within 4s"},
		{"wait-compacted", "fails if its revision is compacted", "lock failed"},
		{"wait-cut", "does not notice the end of its watch", "the waiter did not take the lock within 10s"},
		{"contention", "tries once after a wait", "lock failed: error \"held\""},
		{"queue", "serves the last one first", "the waiter did not take the lock within 1.5s"},
		{"queue", "deletes its ticket later", "took the lock by a transaction that left"},
		{"queue", "leaves its ticket when it gives up", "it gave up, but its ticket is still there"},
		{"queue", "puts a ticket without a lease", "this is not a ticket of a waiter"},
		{"queue", "puts a ticket that is not JSON", "this is not a ticket of a waiter"},
		{"queue", "puts a ticket with a single slash", "this is not a ticket of a waiter"},
		{"queue", "has another uuid than its ticket", ", its ticket \"another\""},
		{"queue-newcomer", "overtakes others", "it waits no more, although the lock is held or others wait"},
		{"queue-newcomer", "always queues", "lock failed: error \"held\""},
		{"queue-passed-over", "waits for others without end", "the waiter did not take the lock within 4s"},
		{"queue-passed-over", "passes over others at once", "it passed over another waiter after"},
		{"queue-passed-over", "leaves the ticket that it passes over", "took the lock by a transaction that left"},
		{"queue-passed-over", "fails if it was passed over", "it waits no more, although the lock is held or others wait"},
		{"queue-passed-over", "waits without a ticket once it was passed over", "it put no ticket for 2.5s, although it did before"},
		{"queue-ticketless", "gives its place up when it is refused", "the waiter did not take the lock within 1.5s"},
		{"queue-ticketless", "fails if another was faster", "lock failed: error \"held\""},
		{"slots", "takes a slot too many", "lock answered ok instead of error \"held\""},
		{"slots", "queues at a slot", "this is not a ticket of a waiter"},
		{"slots", "sees releases only", "the waiter did not take the lock within 1.5s"},
		{"lock-answer-cut", "has a new uuid for each attempt", "the answer was lost, but lock answered error \"held\""},
		{"lock-answer-cut", "takes the token of the last answer", "the token is"},
		{"alive-answer-cut", "tries once", "the lock is still held, but alive answered error"},
		{"alive-late", "compares only the uuid", "an attempt that was executed after a later renewal moved auto_unlock_at"},
		{"lock-late", "forgets late attempts", "it did not release \"billing/invoices\", which nobody holds"},
		{"unlock-answer-cut", "calls its own unlock a loss", "the answer was lost, but unlock answered error \"lost\""},
		{"unlock-late", "forgets late attempts", "it did not release \"billing/invoices\", which nobody holds"},
		{"unlock-late", "releases in the background once", "it did not release \"billing/invoices\", which nobody holds"},
		{"unlock-late", "compares nothing", "changed the lock \"billing/invoices\" of another"},
		{"timeouts", "has no timeouts", "lock: no answer after 7.5s"},
		{"timeouts-trickle", "bounds each read alone", "lock: no answer after 7.5s"},
		{"abandoned", "leaves its requests on their way", "a request of alive without an answer was still on its way after 7.5s"},
		{"abandoned", "bounds a request by its wait only", "a request of lock without an answer was still on its way after 7.5s"},
		{"refused", "has no timeouts", "lock: no answer after 7.5s"},
		{"restart", "gives up quickly", "alive failed"},
		{"failover", "uses the first endpoint only", "alive failed"},
		{"lost-deadline", "counts its renewals only", "it has not noticed the loss"},
		{"lost-deadline", "notices the deadline late", "it noticed the loss"},
		{"lost-unreachable", "renews beyond the deadline", "it noticed the loss"},
		{"lost-shorter", "counts a shorter patience when it is answered", "it has not noticed the loss"},
		{"lost-unlock", "hides a loss by its release", "unlock answered error \"unavailable\" instead of error \"lost\""},
		{"lost-unlock", "reports a loss after its release", "it reported the loss after"},
		{"lost-unlock", "forgets a lock that it lost", "it did not release \"billing/invoices\", which nobody holds"},
		{"lost-restored", "does not compare the cluster", "alive answered ok instead of error \"lost\""},
		{"lost-restored", "does not compare the token", "alive answered ok instead of error \"lost\""},
		{"lost-suspended", "counts ticks instead of time", "it was suspended until after its deadline"},
	}
}

// TestTheGoodClientPasses and TestEachCheckConvicts show that each check depends on what
// the client does.
func TestTheGoodClientPasses(t *testing.T) {
	t.Parallel()
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, judge(t, c, goodClient))
		})
		t.Run(c.name+"/plain", func(t *testing.T) {
			t.Parallel()
			err := judge(t, c, "has no tickets")
			if c.name != "slots" && !strings.HasPrefix(c.name, "queue") {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, "not judged: it waits without a ticket")
		})
		if c.name == "slots" {
			t.Run("none", func(t *testing.T) {
				t.Parallel()
				require.EqualError(t, judge(t, c, "has no slots"), "not judged: it takes a lock, not a slot")
			})
		}
		if c.name == "try-lock-all" {
			t.Run("slow", func(t *testing.T) {
				t.Parallel()
				require.NoError(t, judge(t, c, "takes a minute for many names"))
			})
		}
	}
}

func TestEachCheckConvicts(t *testing.T) {
	t.Parallel()
	unused := map[string]check{}
	for _, c := range checks() {
		unused[c.name] = c
	}
	all := maps.Clone(unused)
	for _, f := range faults() {
		delete(unused, f.check)
		t.Run(f.check+"/"+f.does, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, judge(t, all[f.check], f.does), f.says, "a client that "+f.does)
		})
	}
	require.Empty(t, unused)
}

func judge(t *testing.T, c check, fault string) error {
	return meter(timerLag).try(t.Context(), c, []string{"env", faultVariable + "=" + fault, os.Args[0]}, func(line string) { t.Log(line) })
}

func TestReport(t *testing.T) {
	t.Parallel()
	report := func(fault, pattern string, flags ...string) (int, string) {
		var out, errs bytes.Buffer
		args := slices.Concat(flags, []string{"--run", pattern, "--", "env", faultVariable + "=" + fault, os.Args[0]})
		code := run(t.Context(), args, &out, &errs)
		require.Equal(t, slices.Contains(flags, "-v"), strings.Contains(errs.String(), `> {"id":2,"op":"lock"`))
		return code, out.String() + errs.String()
	}
	code, text := report(goodClient, "^(lock|token)$", "-v")
	require.Equal(t, exitOK, code, text)
	require.Contains(t, text, "2 checks passed, 0 not judged")
	code, text = report("has no slots", "^slots$")
	require.Equal(t, exitOK, code, text)
	require.Regexp(t, `(?m)^skip slots .*\n {5}not judged: it takes a lock, not a slot\n0 checks passed, 1 not judged\n\z`, text)
	code, text = report("has no slots", "^slots$", "--strict")
	require.Equal(t, exitFailure, code, text)
	require.Regexp(t, `(?m)^FAIL slots .*\n {5}not judged: it takes a lock, not a slot\nunlocker-conformance: .* 1 of 1 checks failed\n\z`, text)
	code, text = report("reads, then writes", "^lock-(atomic|held)$")
	require.Equal(t, exitFailure, code, text)
	require.Regexp(t, `(?m)^FAIL lock-atomic .*\n {5}the client changed the lock`, text)
	require.Regexp(t, `(?s)the last commands .*\n +\d+\.\d+s 1 > {"id":2,"op":"lock",.*\n +\d+\.\d+s Range key:"billing/invoices/uuid".*\n +\d+\.\d+s 1 < {"id":2,"ok":true`, text)
	require.Contains(t, text, "unlocker-conformance: the client does not conform: 1 of 2 checks failed")
}

func TestTheDocumentedChecksAreThoseThatRun(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/conformance.md")
	require.NoError(t, err)
	var table strings.Builder
	for _, c := range checks() {
		table.WriteString("| `" + c.name + "` | " + c.about + " |\n")
	}
	require.Contains(t, string(page), table.String())
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, exitOK, "Usage:\n  unlocker-conformance [flags] -- COMMAND"},
		{[]string{"--list", "--run", "^uuid$"}, exitOK, "uuid                 each acquisition has a new uuid"},
		{nil, exitUsage, "unlocker-conformance: no command given; see --help\n"},
		{[]string{"--run", "nothing", "cat"}, exitUsage, "unlocker-conformance: --run: no check matches \"nothing\"\n"},
		{[]string{"--parallel", "0", "cat"}, exitUsage, "unlocker-conformance: --parallel must be at least 1, not 0\n"},
		{[]string{"/no/such/program"}, exitFailure, "/no/such/program: no such file"},
		{[]string{"--run", "^lock$", "sh", "-c", "echo why >&2"}, exitFailure, "ended its output\nwhy\n"},
		{[]string{"true"}, exitFailure, "unlocker-conformance: lost: the driver did not answer: it ended its output"},
		{[]string{"--run", "^lock$", "sh", "-c", "echo hello; cat"}, exitFailure, "it wrote \"hello\", which is not an answer"},
	} {
		var out bytes.Buffer
		require.Equal(t, c.code, run(t.Context(), c.args, &out, &out), out.String())
		require.Contains(t, out.String(), c.says)
	}
}
