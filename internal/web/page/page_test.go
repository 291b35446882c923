package page

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// text returns the part of a page between two texts, without tags.
func text(t *testing.T, html []byte, from, to string) string {
	t.Helper()
	_, rest, found := strings.Cut(string(html), from)
	require.True(t, found, from)
	part, _, found := strings.Cut(rest, to)
	require.True(t, found, to)
	var plain strings.Builder
	for _, piece := range strings.Split("<"+from[strings.LastIndex(from, "<")+1:]+part, "<") {
		_, after, _ := strings.Cut(piece, ">")
		plain.WriteString(after + " ")
	}
	return strings.Join(strings.Fields(plain.String()), " ")
}

func render(t *testing.T, v View, now time.Time) []byte {
	t.Helper()
	html, err := New("/p", false).Render(v, now)
	require.NoError(t, err)
	return html
}

// event returns the data of an event of the stream, as a browser reads it.
func event(t *testing.T, window api.LockPage, e api.Event, now time.Time) []byte {
	t.Helper()
	data, err := New("/p", false).Event(api.Query{Limit: 100}, window, e, now)
	require.NoError(t, err)
	var lines []string
	for i, line := range strings.Split(string(data), "\n") {
		line, isData := strings.CutPrefix(line, "data: ")
		require.True(t, isData || i == 0, "%q", line)
		lines = append(lines, line)
	}
	return []byte(strings.Join(lines, "\n"))
}

// What the page has at its first answer is what its stream sends.
func TestEventsArePartsOfThePage(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	window := api.LockPage{Matched: 1234, Locks: []api.Lock{
		{Name: "a/b", State: "expired", Urgency: "100001795230000a/b", Owner: "o", Hostname: "h", AutoUnlockAt: now.Add(-time.Minute), Due: now},
		{Name: "\r\n\n\u202e<i>", State: "held", Urgency: "699999999999999\n", Owner: "\n\n", Purpose: "\ndata: x\n\n", Status: "\u2028"},
	}}
	status := api.Status{Now: now, Ready: true, Mode: "off", Locks: map[string]int{"expired": 1, "overdue": 2, "held": 1231},
		NearMisses: []api.NearMiss{{Name: "near\n", Owner: "o", Margin: .03, Renewals: 2, At: now}}}
	page := string(render(t, Dashboard{Status: status, LockPage: window, Filter: Filter{Query: api.Query{Limit: 100}}}, now))
	reset := string(event(t, window, api.Event{Type: api.EventReset, Locks: window.Locks, Matched: &window.Matched}, now))
	for _, e := range []struct {
		name string
		html string
		part []string // from and to
	}{
		{"rows", reset, []string{`<tr id="/p/locks/a/b" data-place="100001795230000" data-state="expired">`, "</tbody>"}},
		{"shown", reset, []string{`<span id="shown" data-live>2 of 1,234 locks`, "</span>"}},
		{"matched", string(event(t, window, api.Event{Type: api.EventMatched, Matched: &window.Matched}, now)), []string{`<span id="shown"`, "</span>"}},
		{"a row", string(event(t, window, api.Event{Type: api.EventLock, Lock: &window.Locks[1]}, now)), []string{`<tr id="/p/locks/%0D%0A%0A`, "</tr>"}},
		{"title", string(event(t, window, api.Event{Type: api.EventStatus, Status: &status}, now)), []string{"<title>(1 expired, 2 overdue) Locks", "</title>"}},
		{"banner", string(event(t, window, api.Event{Type: api.EventStatus, Status: &status}, now)), []string{`<ul class="banner" id="notices"`, "</ul>"}},
		{"counts", string(event(t, window, api.Event{Type: api.EventStatus, Status: &status}, now)), []string{`<nav class="counts" id="counts" data-live`, "</nav>"}},
		{"near misses", string(event(t, window, api.Event{Type: api.EventStatus, Status: &status}, now)), []string{`<section id="near" data-live>`, "</section>"}},
	} {
		require.Equal(t, part(t, page, e.part), part(t, e.html, e.part), e.name)
	}
	gone := event(t, window, api.Event{Type: api.EventGone, Name: "a/b"}, now)
	require.Equal(t, `<table><tbody id="rows"><tr id="/p/locks/a/b"></tr></tbody></table>`, string(gone))
}

func part(t *testing.T, html string, between []string) string {
	t.Helper()
	_, rest, found := strings.Cut(html, between[0])
	require.True(t, found, "%s: %s", between[0], html)
	text, _, found := strings.Cut(rest, between[1])
	require.True(t, found, between[1])
	return text
}

// A name takes ten times its size as HTML, where all of it must be escaped.
func TestRowsAreBounded(t *testing.T) {
	locks := make([]api.Lock, 1000)
	for i := range locks {
		locks[i] = api.Lock{Name: fmt.Sprint(i, strings.Repeat("+", 4000)), State: "held"}
	}
	window := api.LockPage{Locks: api.Fit(locks), Matched: 1000}
	for _, html := range [][]byte{
		render(t, Dashboard{LockPage: window}, time.Now()),
		event(t, window, api.Event{Type: api.EventReset, Locks: window.Locks, Matched: &window.Matched}, time.Now()),
	} {
		require.Greater(t, len(html), maxRows)
		require.Less(t, len(html), maxRows+100_000)
	}
}

func TestBannerSaysWhyNothingIsRemoved(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	at := now.Add(-time.Minute)
	healthy := api.Status{Ready: true, Etcd: api.Etcd{Up: true}, Mode: "enforce"}
	for name, c := range map[string]struct {
		edit func(*api.Status)
		want string
	}{
		"healthy":   {func(*api.Status) {}, ""},
		"not ready": {func(s *api.Status) { s.Ready = false }, "The list is not complete: the daemon has not read all locks and pauses yet."},
		"no etcd":   {func(s *api.Status) { s.Etcd = api.Etcd{Error: "no leader", Progress: at} }, "The connection to etcd is lost. no leader (the list is as of 02:59:00 )"},
		"hold":      {func(s *api.Status) { s.Holds = []api.Hold{{Hold: "starting", Since: at, Reason: "until 03:00:10"}} }, "No lock is removed: until 03:00:10 (since 02:59:00 )"},
		"mode off":  {func(s *api.Status) { s.Mode = "off" }, "This replica removes no lock: reaper.mode is off; others may"},
		"dry run":   {func(s *api.Status) { s.Holds = []api.Hold{{Hold: "dry_run", Since: at, Reason: "r"}} }, "This replica removes no lock: r; others may (since 02:59:00 )"},
		"storm": {func(s *api.Status) {
			s.Storm = &api.Storm{Delayed: 3, RemovedBefore: 1032, Until: now.Add(time.Minute)}
		},
			"Many locks came due at once: 1,032 removed before it, 3 more wait. Are their holders cut off from etcd? To keep the locks: " +
				"unlocker pause --for 2h --reason WHY (they wait until 03:01:00 )"},
		"pause of some": {func(s *api.Status) {
			s.Pauses = []api.Pause{{Match: "a/*", By: "u@h", Reason: "\u202e", Until: now.AddDate(0, 0, 1)}}
		}, `Removals are paused: a/*, by u@h: \u202e (until 2026-11-22 03:00 )`},
		"deadlock": {func(s *api.Status) {
			s.Deadlocks = []api.Deadlock{{Due: now.Add(time.Minute), Flows: []api.DeadlockFlow{{Held: []string{"a"}, Lock: "b<i>"}, {Held: []string{"b<i>"}, Lock: "a\u202e"}}}}
		}, `Deadlock: 2 wait for each other (the first of their locks is due 03:01:00 ) ` +
			`an unnamed process on an unknown host (pid unknown) holds a and waits for b&lt;i&gt; ` +
			`an unnamed process on an unknown host (pid unknown) holds b&lt;i&gt; and waits for &#34;a\u202e&#34;`},
		"pause of all":  {func(s *api.Status) { s.Pauses = []api.Pause{{By: "u@h"}} }, ""}, // there is a hold then
		"backlog alone": {func(s *api.Status) { s.Backlog = 1 }, ""},
		"backlog": {func(s *api.Status) {
			s.Holds, s.Backlog = []api.Hold{{Hold: "paused", Since: at, Reason: "r"}}, 12345
		}, "No lock is removed: r (since 02:59:00 ) Due and not removed: 12,345"},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy
			c.edit(&s)
			for _, html := range [][]byte{render(t, Dashboard{Status: s}, now), render(t, Lock{Status: s}, now), render(t, Forced{Status: s}, now),
				render(t, Native{Status: s}, now), render(t, Health{Status: s}, now), event(t, api.LockPage{}, api.Event{Type: api.EventStatus, Status: &s}, now)} {
				require.Equal(t, c.want, text(t, html, `id="notices" data-live>`, "</ul>"))
			}
		})
	}
}

// No holds does not mean that every lock is removed when it is due.
func TestHealthSaysWhatKeepsLocks(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	pauses, storm := []api.Pause{{Match: "a/*"}}, &api.Storm{Delayed: 3, RemovedBefore: 32, Until: now.Add(time.Minute)}
	for _, c := range []struct {
		status api.Status
		want   string
	}{
		{api.Status{}, "None: locks are removed when they are due."},
		{api.Status{Mode: "off"}, "None, but the mode is off: no lock is removed automatically."},
		{api.Status{Pauses: pauses}, "None: locks are removed when they are due, except those that a pause below matches."},
		{api.Status{Storm: storm}, "None: locks are removed when they are due, except those that the storm delays. Storm storm 3 wait until 2026-11-21 03:01:00 , 32 were removed before it. Many locks came due at once."},
		{api.Status{Pauses: pauses, Storm: storm}, "None: locks are removed when they are due, except those that a pause below matches, and those that the storm delays."},
	} {
		require.Contains(t, text(t, render(t, Health{Status: c.status}, now), "<h3>Holds</h3>", "<h3>Pauses</h3>"), c.want)
	}
}

// Times in a sentence are shown as others on the page; what is quoted is not one.
func TestTimesInASentence(t *testing.T) {
	d := document{Now: time.Date(2026, 11, 21, 23, 0, 0, 0, time.UTC)}
	for s, want := range map[string]string{
		"":                                 "",
		"waits":                            "waits",
		"waits until 23:01:00: x":          "waits until <2026-11-21T23:01:00.000Z>: x",
		"01:02:03 and 2026-11-22 01:02:03": "<2026-11-21T01:02:03.000Z> and <2026-11-22T01:02:03.000Z>",
		`is "01:02:03" \"01:02:03, 25:02:03 01:02:034`: `is "01:02:03" \"<2026-11-21T01:02:03.000Z>, 25:02:03 01:02:034`,
		"\u202e \x1b 01:02:03":                         `\u202e \x1b <2026-11-21T01:02:03.000Z>`,
	} {
		got := ""
		for _, part := range d.Sentence(s) {
			if got += part.Text; part.Time.Known() {
				got += "<" + part.Time.ISO() + ">"
			}
		}
		require.Equal(t, want, got)
	}
}

// The key that has a native lock is shown, above all where it is not one of its own.
func TestNativePageShowsTheKeyThatBlocks(t *testing.T) {
	list := api.NativeList{Prefixes: []api.NativePrefix{{Prefix: "/locks/", Holders: []api.NativeHolder{
		{Name: "/locks/a", NativeKey: api.NativeKey{Key: "/locks/a/694d", LeaseState: "none"}},
		{Name: "/locks/b", NativeKey: api.NativeKey{Key: "/locks/b/\u202e/x", LeaseState: "none"}, Foreign: true},
	}}}}
	rows := text(t, render(t, Native{NativeList: list}, time.Now()), "<tbody>", "</tbody>")
	require.Contains(t, rows, "/locks/a key /locks/a/694d ")
	require.Contains(t, rows, `/locks/b blocked by a key that is not its own: &#34;/locks/b/\u202e/x&#34;`)
}

func TestRowOfALock(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	in := now.Add
	for name, c := range map[string]struct {
		lock api.Lock
		want string
	}{
		"held": {api.Lock{Name: "a/b", State: "held", Owner: "o", Hostname: "h", Purpose: "p", Status: "s",
			LockedAt: in(-time.Hour), AlertAt: in(30 * time.Second), AutoUnlockAt: in(time.Hour), Due: in(time.Hour + 4*time.Second)},
			"held a/b p s o h 1h00m 02:00:00 in 30s 03:00:30 in 1h00m 04:00:00"},
		"a clock that is ahead": {api.Lock{Name: "a", State: "overdue", ClockOffset: 60,
			LockedAt: in(0), AlertAt: in(50 * time.Second), AutoUnlockAt: in(2 * time.Minute), Due: in(time.Minute)},
			"overdue a 1m00s 02:59:00 10s ago 02:59:50 in 1m00s 03:01:00"},
		"expired, waits": {api.Lock{Name: "a", State: "expired", Explanation: "waits until 03:01:00", AutoUnlockAt: in(-time.Minute), Due: in(time.Minute)},
			"expired a waits until 03:01:00 – – 1m00s ago due in 1m00s"},
		"expired, in its grace": {api.Lock{Name: "a", State: "expired", AutoUnlockAt: in(-time.Second), Due: in(time.Second)},
			"expired a – – 1s ago 02:59:59"},
		"overdue, waits for its patience": {api.Lock{Name: "a", State: "overdue", AutoUnlockAt: in(time.Minute), Due: in(5 * time.Minute)},
			"overdue a – – in 1m00s due in 5m00s"},
		"renews": {api.Lock{Name: "a", State: "held", LockedAt: in(-time.Hour), Rhythm: &api.Rhythm{RenewedAt: in(-8 * time.Second), Interval: 40}},
			"held a 1h00m 02:00:00 renewed 8s ago, every 40s – never"},
		"waiters": {api.Lock{Name: "a", State: "held", LockedAt: in(-time.Hour), Waiters: 1234}, "held a 1h00m 02:00:00 1,234 wait for it – never"},
		"waiter":  {api.Lock{Name: "a", State: "held", LockedAt: in(-time.Hour), Waiters: 1}, "held a 1h00m 02:00:00 1 waits for it – never"},
		"silent": {api.Lock{Name: "a", State: "held", LockedAt: in(-time.Hour), Rhythm: &api.Rhythm{RenewedAt: in(-250 * time.Second), Interval: 40, Missed: 6}},
			"held a 1h00m 02:00:00 not renewed for 4m10s , 6 missed, every 40s before – never"},
		"orphan":              {api.Lock{Name: "a", State: "orphaned", AutoUnlockAt: in(time.Hour), Due: in(time.Minute)}, "orphaned a – – in 1h00m due in 1m00s"},
		"undated":             {api.Lock{Name: "a", State: "undated", AlertAt: in(time.Hour)}, "undated a – in 1h00m 04:00:00 never"},
		"invisible, reversed": {api.Lock{Name: "a\u202e", State: "held", Purpose: "<script>"}, `held &#34;a\u202e&#34; &lt;script&gt; – – never`},
	} {
		t.Run(name, func(t *testing.T) {
			window := api.LockPage{Locks: []api.Lock{c.lock}}
			require.Equal(t, c.want, text(t, render(t, Dashboard{LockPage: window}, now), `<tbody id="rows">`, "</tbody>"))
			require.Equal(t, c.want, text(t, event(t, window, api.Event{Type: api.EventLock, Lock: &c.lock}, now), `<tbody id="rows">`, "</tbody>"))
		})
	}
}

// A browser resolves dots in a path before it asks.
func TestLinkOfALock(t *testing.T) {
	for name, want := range map[string]string{
		"a/b": "/p/locks/a/b", "a b%": "/p/locks/a%20b%25", "a/../b": "/p/locks/a%2F..%2Fb", ".": "/p/locks/.%2F", "..": "/p/locks/..%2F", "...": "/p/locks/...", "a?b#c": "/p/locks/a%3Fb%23c", "ä": "/p/locks/%C3%A4",
	} {
		require.Equal(t, want, document{Prefix: "/p"}.Lock(name))
	}
}

// A name that is not whole has no link: that would lead to no lock.
func TestNamesThatAreNotWholeHaveNoLinks(t *testing.T) {
	long := strings.Repeat("ö", 4<<10)
	for name, want := range map[string]bool{"a": true, "a…": true, long[:4<<10]: true, protocol.Clip([]byte(long), 4<<10): false, protocol.Clip([]byte("x"+long), protocol.MaxName): false} {
		window := api.LockPage{Locks: []api.Lock{{Name: name}}}
		for _, html := range [][]byte{
			render(t, Dashboard{LockPage: window}, time.Now()), event(t, window, api.Event{Type: api.EventLock, Lock: &window.Locks[0]}, time.Now()),
			render(t, Forced{Forced: []api.Forced{{Name: name}}}, time.Now()),
			render(t, Dashboard{Status: api.Status{NearMisses: []api.NearMiss{{Name: name}}}}, time.Now()),
		} {
			require.Equal(t, want, strings.Contains(string(html), ` href="/p/locks/`))
			require.Contains(t, string(html), name+"<")
		}
	}
}

// Dead and slow but living look different.
func TestSilentHoldersLookDifferent(t *testing.T) {
	for missed, silent := range map[int]bool{0: false, 2: false, 3: true} {
		l := api.Lock{Name: "a", State: "held", Token: 1, Rhythm: &api.Rhythm{RenewedAt: time.Now(), Interval: 40, Missed: missed}}
		for _, v := range []View{Dashboard{LockPage: api.LockPage{Locks: []api.Lock{l}}}, Lock{Name: "a", Detail: &api.LockDetail{Lock: l}}} {
			html := string(render(t, v, time.Now()))
			require.Equal(t, silent, strings.Contains(html, `class="silent"`))
			require.Equal(t, !silent, strings.Contains(html, `class="alive"`))
		}
	}
	html := string(render(t, Lock{Name: "a", Detail: &api.LockDetail{Lock: api.Lock{Name: "a", Token: 1}}}, time.Now()))
	require.Contains(t, html, "not known: this replica has seen no rhythm of renewals")
}

func TestWaitersOfALock(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	waits := func(l api.WaiterList) string {
		return text(t, render(t, Lock{Name: "a", Waiters: l}, now), `<section id="waiters" data-live`, "</section>")
	}
	require.Equal(t, "Waiters: 0", waits(api.WaiterList{}))
	require.Contains(t, string(render(t, Lock{Name: "a"}, now)), `<section id="waiters" data-live hidden`)
	require.Equal(t, "Waiters: 0 Others are not known: permission denied.", waits(api.WaiterList{Error: "permission denied"}))
	seen := now.Add(-time.Minute)
	got := waits(api.WaiterList{More: 1200, Waiters: []api.Waiter{
		{Seen: seen, Ticket: protocol.Ticket{Owner: "billing", Hostname: "h<i>\u202e", PID: "12", Purpose: "<script>", Since: seen.Add(-time.Second), Slots: 3, Holds: []string{"u", "v"}}},
		{Seen: seen, Unreadable: true, Key: "\"><b>"},
	}})
	require.Equal(t, "Waiters: 1,202 Those who wait, in the order in which they get it Turn Process Has waited Purpose "+
		`1 billing on &#34;h&lt;i&gt;\u202e&#34; pid 12 1m00s since 02:58:59 by its clock &lt;script&gt; holds other locks meanwhile: 2 for one of 3 slots `+
		"2 a ticket that cannot be read 1m00s and 1,200 more", got)
}

func TestFilterStaysInLinks(t *testing.T) {
	require.Equal(t, "?silent=true&state=held", Filter{Query: api.Query{Limit: 100, Silent: true}}.With("state", "held"))
	require.True(t, Filter{Query: api.Query{Silent: true}}.Set())
	f := Filter{Query: api.Query{States: []string{"held"}, Contains: "a b", Owner: "o", Limit: 250, After: "x"}}
	require.Equal(t, "?limit=250&owner=o&q=a+b&state=expired", f.With("state", "expired"))
	require.Equal(t, "?limit=250&owner=o&q=a+b", f.With("state", ""))
	require.Equal(t, "?after=y&limit=250&owner=o&q=a+b&state=held", f.With("after", "y"))
	require.Equal(t, []int{100, 250, 1000, 7}, Filter{Query: api.Query{Limit: 7}}.Limits())
	require.False(t, Filter{Query: api.Query{Limit: 7}}.Set())
}

func TestPacked(t *testing.T) {
	for header, packed := range map[string]bool{
		"": false, "gzip": true, "br, GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0": false, "deflate": false, "*": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept-Encoding", header)
		w := httptest.NewRecorder()
		Send(w, r, http.StatusOK, []byte("body"), Gzip)
		require.Equal(t, "Accept-Encoding", w.Header().Get("Vary"))
		var body io.Reader = w.Body
		if packed {
			require.Equal(t, "gzip", w.Header().Get("Content-Encoding"), header)
			unpacked, err := gzip.NewReader(w.Body)
			require.NoError(t, err)
			body = unpacked
		}
		got, err := io.ReadAll(body)
		require.NoError(t, err)
		require.Equal(t, "body", string(got), header)
	}
}

// The limit is for page, style sheet and scripts together, and an on-call engineer's phone.
func TestDashboardIsSmall(t *testing.T) {
	now := time.Now()
	var locks []api.Lock
	for i := range 100 {
		locks = append(locks, api.Lock{Name: fmt.Sprintf("service/%x", i*i*7919), State: "held", Owner: "service", Hostname: "host.example.org", Purpose: "the purpose",
			LockedAt: now, AlertAt: now, AutoUnlockAt: now, Due: now})
	}
	html := Gzip(render(t, Dashboard{LockPage: api.LockPage{Locks: locks}}, now))
	total := len(html)
	for name, file := range loadAssets().files {
		require.NotEmpty(t, file.contentType, name)
		total += len(file.packed)
	}
	require.Less(t, total, 60<<10)
	t.Logf("%d bytes packed, %d of them HTML", total, len(html))
	require.False(t, bytes.Contains(html, []byte("<style")))
}

// Groups come in the order of their most urgent locks, with a heading each, and bring no other locks.
func TestGroups(t *testing.T) {
	locks := []api.Lock{{Name: "a", Owner: "x", Hostname: "h"}, {Name: "b"}, {Name: "c", Owner: "x"}, {Name: "d", Hostname: "h"}, {Name: "e", Owner: "<i>"}}
	for group, want := range map[string]string{"": "a b c d e", "owner": "x2:a c no owner2:b d <i>1:e", "hostname": "h2:a d no host3:b c e"} {
		v := Dashboard{Filter: Filter{Group: group}}
		v.Locks = slices.Clone(locks)
		v.Filter.Arrange(v.Locks)
		var got []string
		for r := range (document{html: &bytes.Buffer{}}).Rows(v) {
			if r.Heading != "" {
				got = append(got, fmt.Sprintf("%s%d:%s", r.Heading, r.Count, r.Name))
			} else {
				got = append(got, r.Name)
			}
		}
		require.Equal(t, want, strings.Join(got, " "), group)
		require.Equal(t, group != "", strings.Contains(v.Filter.With("owner", "y"), "group="+group))
	}
}

// Where users may act, the banner of a storm leads to the form, and elsewhere it has the command.
func TestStormLeadsToThePause(t *testing.T) {
	for acts, want := range map[bool]string{true: `href="/p/actions#pause"`, false: "<code>unlocker pause --for 2h --reason WHY</code>"} {
		html, err := New("/p", acts).Render(Health{Status: api.Status{Ready: true, Storm: &api.Storm{Delayed: 3}}}, time.Now())
		require.NoError(t, err)
		require.Contains(t, string(html), want)
	}
}
