package output_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// formats are all formats but that of templates.
var formats = []string{"table", "wide", "json", "yaml", "name"}

// evil is a name that would clear the screen and reverse the rest of its line.
const evil = "e\x1b[2Jv\u202ei\nl\u200b"

func locks() []api.Lock {
	return []api.Lock{
		{Name: "/bad/\uFFFD/uuid", State: "malformed", Revision: 25, Keys: 1},
		{Name: "billing/invoices", State: "overdue", UUID: "0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab", Hostname: "worker-17.example.org",
			Owner: "billing", LockedAt: now.Add(-12 * time.Minute), AliveAt: now.Add(-7 * time.Minute), AlertAt: now.Add(-130 * time.Second),
			AutoUnlockAt: now.Add(470 * time.Second), Token: 1234, Revision: 1301, Keys: 9, Purpose: "invoices of November", Status: "12 of 340", Waiters: 4},
		{Name: "deploy/" + strings.Repeat("x", 100), State: "expired", UUID: "u", Hostname: strings.Repeat("h", 253) + "…",
			AutoUnlockAt: now.Add(-50 * time.Hour), Token: 5, Revision: 6, Keys: 3, Purpose: strings.Repeat("p", 253)},
		{Name: evil, State: "held", UUID: "\x1b]0;title\x07\xff", Hostname: "a\u009b31mb", Owner: `"q"`, LockedAt: now.Add(3 * time.Second),
			AlertAt: now, AutoUnlockAt: now.Add(time.Second), Token: 9, Revision: 9, Keys: 4, Status: "\x1b[2J\n50 %"},
		{Name: "schlüssel/日本語", State: "undated", UUID: "yes", Hostname: "1e3", Owner: "null", Token: 10, Revision: 10, Keys: 4},
	}
}

// golden compares with testdata/name; UPDATE=1 go test writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// requireHarmless looks at what a terminal would get, rune by rune.
func requireHarmless(t require.TestingT, got string) {
	got = strings.ReplaceAll(got, "\t", "")
	require.Equal(t, got, terminal.Text(got))
}

func list(t require.TestingT, f output.Format, all []api.Lock) string {
	var b bytes.Buffer
	require.NoError(t, output.List(&b, output.Options{Format: f, At: now}, slices.Values(all)))
	return b.String()
}

// As the daemon at a URL explained them.
func TestExplanations(t *testing.T) {
	all := locks()
	all[1].Explanation = "is removed at 12:07:52 unless its holder renews it: grace 2s after auto_unlock_at"
	all[2].Explanation = "is due; removals on hold since 11:59:03: the probe fails: \x1b[2J"
	all[1].Rhythm = &api.Rhythm{RenewedAt: now.Add(-4 * time.Minute), Interval: 40, Missed: 6}
	all[3].Rhythm = &api.Rhythm{RenewedAt: now.Add(-time.Second), Interval: .5}
	for _, f := range []output.Format{output.Table, output.Wide, output.JSON, output.YAML} {
		var b bytes.Buffer
		require.NoError(t, output.List(&b, output.Options{Format: f, At: now, Explained: true}, slices.Values(all)))
		requireHarmless(t, b.String())
		golden(t, "explained."+string(f), b.String())
	}
	require.NotContains(t, list(t, output.Wide, locks()), "EXPLANATION", "no daemon was asked")

	d := detail()
	require.NotContains(t, show(t, output.Table, d), "Alive:")
	d.Explanation, d.ExplainedBy = all[1].Explanation+"; \x1b[2J", "http://127.0.0.1:9481"
	d.Token, d.Verdict, d.Rhythm = max(1, d.Token), &verdict.Verdict{Inputs: verdict.Inputs{Now: now}}, all[1].Rhythm
	for _, f := range []output.Format{output.Table, output.JSON} {
		requireHarmless(t, show(t, f, d))
		golden(t, "show-explained."+string(f), show(t, f, d))
	}
}

func TestList(t *testing.T) {
	for _, f := range formats {
		got := list(t, output.Format(f), locks())
		requireHarmless(t, got)
		golden(t, "list."+f, got)
	}
}

func TestListOfNone(t *testing.T) {
	for f, want := range map[output.Format]string{
		output.Table: "", output.Wide: "", output.Name: "", output.JSON: "{\n  \"locks\": []\n}\n", output.YAML: "locks: []\n",
	} {
		require.Equal(t, want, list(t, f, nil))
	}
}

// Text stays text, whoever reads it.
func TestYAMLOfWhatLooksLikeSomethingElse(t *testing.T) {
	for _, s := range []string{"yes", "No", "y", "on", "1:30", "-1:30:00.5", "1e3", "0x1f", "null", "~", "true", "1.0", "2026-11-20", "", "- a", "a: b", "#a", "@a", "'"} {
		got := list(t, output.YAML, []api.Lock{{Name: "a", State: "held", Owner: s}})
		require.True(t, s == "" || strings.Contains(got, `owner: "`+s+`"`) || strings.Contains(got, `owner: '`+strings.ReplaceAll(s, "'", "''")+`'`), got)
	}
}

// Written lock by lock, the documents are what they would be written at once.
func TestListIsALockPage(t *testing.T) {
	want := api.LockPage{Locks: locks()}
	want.Locks[3].UUID = "\x1b]0;title\x07\uFFFD" // JSON has no invalid bytes
	var page api.LockPage
	require.NoError(t, json.Unmarshal([]byte(list(t, output.JSON, locks())), &page))
	require.Equal(t, want, page)

	var fromYAML, fromJSON any
	require.NoError(t, yaml.Unmarshal([]byte(list(t, output.YAML, locks())), &fromYAML))
	require.NoError(t, yaml.Unmarshal([]byte(list(t, output.JSON, locks())), &fromJSON))
	require.Equal(t, fromJSON, fromYAML)
}

func TestNamesCanBeGivenBack(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(list(t, output.Name, locks()), "\n"), "\n")
	require.Len(t, lines, len(locks()))
	for i, l := range locks()[1:] {
		name, err := admin.ParseName("/mutexes/", lines[i+1])
		require.NoError(t, err)
		require.Equal(t, l.Name, name)
	}
}

func TestTableIsAligned(t *testing.T) {
	for _, f := range []output.Format{output.Table, output.Wide} {
		lines := strings.Split(strings.TrimSuffix(list(t, f, locks()), "\n"), "\n")
		before, _, found := strings.Cut(lines[0], "STATE")
		require.True(t, found)
		for i, l := range locks() {
			prefix, _, found := strings.Cut(lines[i+1], "   "+l.State)
			require.True(t, found, lines[i+1])
			require.Equal(t, terminal.Columns(before), terminal.Columns(prefix)+3)
		}
	}
}

// detail is a lock of which everything is known.
func detail() admin.Detail {
	d := admin.Detail{At: now, Outlook: []string{"It is late.", "So late that this sentence has to go on on the next line of the terminal, and on the one behind that, too."}}
	d.Lock = locks()[1]
	d.Fields = []api.Field{
		{Name: "alert_at", Value: "1"}, {Name: "alive_at", Value: "1"}, {Name: "auto_unlock_at", Value: "1"},
		{Name: "backtrace", Value: "run.go:112 lock\r\n\tmain.go:31 main\n\n\x1b[2Jend\n"},
		{Name: "hostname", Value: "worker-17.example.org"}, {Name: "locked_at", Value: "1"},
		{Name: "owner", Value: "billing"}, {Name: "pid", Value: "4711"}, {Name: "purpose", Value: "invoices of November"},
		{Name: "stack", Value: "goroutine 7 [IO wait]:\nmain.write write.go:31\n"}, {Name: "status", Value: "invoice 512 of 10,000"},
		{Name: "uuid", Value: "0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab"},
		{Name: "ticket", Value: "OPS-1"}, {Name: "no\u200bte", Value: "two\nlines"}, {Name: "empty", Value: ""},
	}
	d.MoreFields = 7
	d.Queue = api.WaiterList{More: 1, Waiters: []api.Waiter{
		{Ticket: protocol.Ticket{Owner: "billing", Hostname: "worker-18.example.org", PID: "12", Since: now.Add(-time.Minute), Purpose: evil}},
		{Ticket: protocol.Ticket{Hostname: evil}}, {Unreadable: true},
	}}
	return d
}

func show(t require.TestingT, f output.Format, d admin.Detail) string {
	var b bytes.Buffer
	require.NoError(t, output.Lock(&b, f, d))
	return b.String()
}

func TestLock(t *testing.T) {
	leftovers := detail()
	leftovers.Leftovers = []string{"purpose", "backtrace"}
	leftovers.Outlook, leftovers.MoreFields = []string{"Fine."}, 0

	orphan := admin.Detail{At: now, Outlook: []string{"Nobody's."}}
	orphan.Lock = api.Lock{Name: "orphan", State: "orphaned", Revision: 13, Keys: 2}
	orphan.Fields = []api.Field{{Name: "alert_at", Value: "1700000000"}, {Name: "hostname", Value: "h"}}

	malformed := admin.Detail{At: now, Outlook: []string{"auto_unlock_at is \"\u202e\"."}}
	malformed.Lock = api.Lock{Name: evil, State: "malformed", UUID: "\xff", Token: 3, Revision: 13, Keys: 2}
	malformed.Fields = []api.Field{{Name: "auto_unlock_at", Value: "\u202e"}, {Name: "uuid", Value: "\uFFFD"}, {Name: evil, Value: "1\n" + evil}}

	long := detail()
	long.Name = strings.Repeat("n", 300)
	long.Fields[3].Value = strings.Repeat("frame\n", 100) + strings.Repeat("f", 500)
	long.Fields[8].Value = strings.Repeat("p", 500)
	cut := detail()
	cut.Fields[3].TruncatedFrom, cut.Fields[8].TruncatedFrom, cut.Fields[13].TruncatedFrom = 1_234_567, 70_000, 80_000
	for range 60 {
		long.Fields = append(long.Fields, api.Field{Name: strings.Repeat("f", 300), Value: "v"})
	}
	for name, d := range map[string]admin.Detail{"all": detail(), "leftovers": leftovers, "orphan": orphan, "malformed": malformed, "long": long, "cut": cut} {
		for _, f := range formats {
			got := show(t, output.Format(f), d)
			requireHarmless(t, got)
			if name != "long" || f == "table" {
				golden(t, "show-"+name+"."+f, got)
			}
		}
	}
	require.Greater(t, len(show(t, output.Wide, long)), len(show(t, output.Table, long))+1000)
}

func TestRemoved(t *testing.T) {
	r := api.Forced{At: now, Name: evil, UUID: "u\u202e", Owner: "o", Trigger: "manual", Revision: 77, Fields: []api.Field{{Name: "uuid", Value: "u\u202e"}}}
	for _, f := range formats {
		var b bytes.Buffer
		require.NoError(t, output.Removed(&b, output.Format(f), r))
		requireHarmless(t, b.String())
		golden(t, "removed."+f, b.String())
	}
}

func TestQuestion(t *testing.T) {
	d := detail()
	require.Equal(t, "Remove lock billing/invoices, held by billing on worker-17.example.org? Its holder may still be working. [y/N] ", output.Question(d, true))
	d.Owner, d.Name = "", strings.Repeat(evil, 100)
	require.Contains(t, output.Question(d, true), "…, held by worker-17.example.org? ")
	d.Hostname = evil
	requireHarmless(t, output.Question(d, true))
	d.Hostname = ""
	require.Contains(t, output.Question(d, true), "…? Its")
	require.Contains(t, output.Question(d, false), ", without a record? Its")
	said := output.Unrecorded(errors.New("etcd says \x1b[31mno\nand no"))
	requireHarmless(t, said)
	require.Contains(t, said, "etcd refuses the record of this unlock, so that none is left: etcd says \\x1b[31mno")
}

// Whatever etcd contains.
func TestNothingRawGetsOut(t *testing.T) {
	hostile := rapid.Map(rapid.SliceOf(rapid.SampledFrom([]string{"\x1b[31m", "\n", "\r", "\t", "\u202e", "\u0085", "\xff", "\u200b", "\u2028", "日", "𝔘", "é", ": ", "- ", "#", `"`, `'`, "a", " ", "|", "\u0301", "\U000e0041"})),
		func(parts []string) string { return strings.Join(parts, "") })
	rapid.Check(t, func(t *rapid.T) {
		valid := func(what string) string { return strings.ToValidUTF8(hostile.Draw(t, what), "\uFFFD") }
		d := admin.Detail{At: now, Outlook: []string{valid("outlook")}}
		d.Lock = api.Lock{Name: valid("name"), State: "held", UUID: valid("uuid"), Hostname: valid("hostname"), Owner: valid("owner"), Token: 1,
			Purpose: valid("purpose"), Status: valid("status"), Explanation: valid("explanation")}
		d.Fields = []api.Field{{Name: "backtrace", Value: valid("backtrace")}, {Name: valid("field"), Value: valid("value")}}
		for _, f := range append(slices.Clone(formats), "jsonpath={.name}{.purpose}{.fields}", "jsonpath={.locks}{.locks[*].name}{.locks[*].status}") {
			requireHarmless(t, show(t, output.Format(f), d))
			requireHarmless(t, list(t, output.Format(f), []api.Lock{d.Lock, d.Lock}))
		}
		var fromJSON api.LockDetail
		require.NoError(t, json.Unmarshal([]byte(show(t, output.JSON, d)), &fromJSON))
		require.Equal(t, d.LockDetail, fromJSON)
		var a, b any
		require.NoError(t, json.Unmarshal([]byte(show(t, output.JSON, d)), &a))
		require.NoError(t, yaml.Unmarshal([]byte(show(t, output.YAML, d)), &b))
		again, err := json.Marshal(b)
		require.NoError(t, err)
		var c any
		require.NoError(t, json.Unmarshal(again, &c))
		require.Equal(t, a, c)
	})
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestFailedWritesAreReported(t *testing.T) {
	for _, f := range formats {
		f := output.Format(f)
		require.ErrorContains(t, output.List(broken{}, output.Options{Format: f, At: now}, slices.Values(locks())), "broken")
		require.ErrorContains(t, output.Lock(broken{}, f, detail()), "broken")
		require.ErrorContains(t, output.Removed(broken{}, f, api.Forced{}), "broken")
	}
}

func TestFormat(t *testing.T) {
	f := output.Table
	require.NoError(t, f.Set("yaml"))
	require.Equal(t, "yaml", f.String())
	require.EqualError(t, f.Set("xml"), "want table, wide, json, yaml, name, jsonpath=TEMPLATE")
	require.Equal(t, output.YAML, f)
	require.ErrorContains(t, f.Set("jsonpath=.name"), "in braces")
	require.ErrorContains(t, f.Set("jsonpath={.name"), "unclosed action")
}
