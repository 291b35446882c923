package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// What a plugin prints, to the byte.
func TestOutput(t *testing.T) {
	rules := byDefault(t)
	rules.Critical = ranged(t, "@10:20")
	r := Judge(rules, []Answer{
		answer(late(overdue, "billing/invoices", 12*time.Minute), late(expired, "deploy", 4*time.Minute), forced("report", "expiry", time.Minute, 7),
			hold("alarm", time.Minute), func(a *Answer) {
				a.Status.Locks[undated]++
				a.Locks = append(a.Locks, api.Lock{Name: "old", State: undated,
					Explanation: "is never removed automatically: there is no auto_unlock_at"})
				a.Status.Backlog = 1
				until := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
				a.Status.Pauses = []api.Pause{{By: "ada@laptop", Reason: "maintenance", Until: until}}
				for range 6 {
					a.Status.Pauses = append(a.Status.Pauses, api.Pause{Match: "deploy/**", By: "bob@laptop", Reason: "by|the", Until: until})
				}
			}),
		answer(at("http://b:9481"), failed("does not answer within 10s")),
	})
	require.Equal(t, `UNLOCKER WARNING: 2 of 15 locks overdue: billing/invoices (billing on worker-1, 12m00s), deploy (billing on worker-1, 4m00s); `+
		`1 lock never removed automatically (1 undated, 0 malformed); http://b:9481 does not answer within 10s; `+
		`1 forced unlock in the last 1h00m: report (worker-2, 1m00s ago); removals are on hold for 1m00s: alarm (because of alarm)`+
		` | overdue=2;0;@10:20;0 locks_held=12;;;0 locks_overdue=1;;;0 locks_expired=1;;;0 locks_undated=1;;;0 locks_malformed=0;;;0`+
		` locks_orphaned=0;;;0 backlog=1;;;0 forced=1;0;;0
billing/invoices: overdue, 12m00s past its alert time; held by billing on worker-1 since 2026-11-20T10:48:00Z; not renewed for 4m00s, 5 missed, every 40s before
deploy: expired, 4m00s past its alert time; held by billing on worker-1 since 2026-11-20T10:56:00Z; is due; removals on hold since 11:59:00: because of alarm
old: undated; held by an unknown host; is never removed automatically: there is no auto_unlock_at
report: force-unlocked 1m00s ago by an unknown replica (expiry); was held by worker-2
http://a:9481: a-0, version 1.2.3, mode enforce; leader; etcd revision 100; on hold for 1m00s: alarm (because of alarm); removal of all locks paused until 2026-11-20T14:00:00Z by ada@laptop: maintenance`+strings.Repeat(`; removal of deploy/** paused until 2026-11-20T14:00:00Z by bob@laptop: bythe`, 4)+`; and 2 more pauses
http://b:9481: does not answer within 10s
`, r.String())
	r.Long = nil
	require.Equal(t, 1, strings.Count(r.String(), "\n"))
}

func TestExitCodes(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 3}, []int{int(OK), int(Warning), int(Critical), int(Unknown)})
	require.Equal(t, "UNLOCKER UNKNOWN: no such flag: -z\n", Misused(errors.New("no such flag: '-z'")).String())
}

// Whoever may write to etcd may choose names, hosts, owners and more.
func TestHostileText(t *testing.T) {
	evil := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"a|b=1;2", "\n\nUNLOCKER OK: fine", "$(reboot)", "`reboot`", "'; reboot #", `"x"`, "<script>", "\x00\x1b[2J", "\u2028\u202e", "\xff\xfe",
		`\n`, "&amp;", strings.Repeat("long ", 9000), strings.Repeat("ü", 99), "", "~/x", "\r\n"}))
	count := rapid.OneOf(rapid.IntRange(0, 300), rapid.Just(1<<40))
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return evil.Draw(t, what) }
		a := Answer{URL: text("url"), Status: api.Status{Version: text("version"), Identity: text("identity"), Now: now, Mode: text("mode"), Ready: true,
			Locks: map[string]int{}, Backlog: count.Draw(t, "backlog"), Holds: []api.Hold{{Hold: verdict.Hold(text("hold")), Reason: text("reason"), Since: ago(time.Hour)}},
			Pauses: []api.Pause{{Match: text("match"), By: text("by"), Reason: text("why")}},
			Etcd:   api.Etcd{Up: rapid.Bool().Draw(t, "up"), Error: text("error"), Alarms: []string{text("alarm")}}}}
		for _, s := range api.States() {
			a.Status.Locks[s] = count.Draw(t, s)
		}
		for range rapid.IntRange(0, 200).Draw(t, "locks") {
			a.Locks = append(a.Locks, api.Lock{Name: text("name"), Hostname: text("hostname"), Owner: text("owner"), Explanation: text("explanation"),
				State: rapid.SampledFrom(api.States()).Draw(t, "state"), AlertAt: ago(time.Duration(rapid.Int64().Draw(t, "age")))})
			a.Forced = append(a.Forced, api.Forced{At: now, Name: text("name"), Hostname: text("hostname"), Trigger: verdict.Trigger(text("trigger"))})
		}
		one := api.Lock{Name: text("name"), State: text("state"), Hostname: text("hostname"), Owner: text("owner"), Explanation: text("explanation")}
		a.Lock = &one
		rules := Rules{Lock: rapid.SampledFrom([]string{"", text("asked")}).Draw(t, "lock"), Forced: time.Hour,
			Warning: Range{text: strings.Repeat("1", maxRange)}, Critical: Range{text: strings.Repeat("1", maxRange)}}
		broken := Answer{URL: text("url"), Err: errors.New(text("failure"))}

		requireSound(t, Judge(rules, []Answer{a, broken}).String())
		requireSound(t, Misused(errors.New(text("misuse"))).String())
	})
}

// requireSound holds for every output: bounded, printable, and no text behind the
// one bar but numbers.
func requireSound(t require.TestingT, out string) {
	require.LessOrEqual(t, len(out), maxOutput)
	require.True(t, utf8.ValidString(out))
	head, long, _ := strings.Cut(out, "\n")
	require.Less(t, len(head), 1024, "NRPE 2 hands on no more")
	require.Regexp(t, `^UNLOCKER (OK|WARNING|CRITICAL|UNKNOWN): `, head)
	text, data, _ := strings.Cut(head, " | ")
	for _, foreign := range []string{text, long} {
		require.False(t, strings.ContainsAny(foreign, "|`~$&'\"<>\\\r\x00\x1b\u2028\u202e"), foreign)
	}
	require.Regexp(t, `^([a-z_]+=\d+s?;1*0?;1*;0( |$))*$`, data)
	require.True(t, strings.HasSuffix(out, "\n"))
}

func TestManyLinesAreCut(t *testing.T) {
	var changes []func(*Answer)
	for i := range 500 {
		changes = append(changes, late(overdue, fmt.Sprintf("%03d", i), time.Duration(500-i)*time.Second))
	}
	out := Judge(byDefault(t), []Answer{answer(changes...)}).String()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	require.LessOrEqual(t, len(out), maxOutput)
	require.Greater(t, len(out), maxOutput-400, "the room is used")
	require.True(t, strings.HasPrefix(lines[1], "000: "))
	require.Equal(t, fmt.Sprintf("and %d more lines", 501-(len(lines)-2)), lines[len(lines)-1])
}
