//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// Each page is complete without scripts, in light and dark, and axe-core finds nothing.
func TestPagesOfTheDaemon(t *testing.T) {
	s := startSite(t, "--reaper-grace", "10s", "--reaper-probe-interval", "5s") // a slow answer of etcd is no lost connection
	s.Put(s.Lock("billing/invoices", time.Now().Add(time.Hour), time.Now().Add(2*time.Hour))...)
	s.awaitMetric(1, "unlocker_locks")
	for path, want := range map[string]string{"/": "billing/invoices", "/?group=owner": "billing/invoices", "/locks/billing/invoices": "auto_unlock_at", "/forced": "Forced unlocks", "/health": "Connection up"} {
		plain := s.open(path, withoutJavaScript())
		require.Contains(t, plain.text("main"), want)
		b := s.open(path)
		require.Contains(t, b.text("main"), want)
		for scheme, background := range map[string]string{"light": "rgb(245, 246, 248)", "dark": "rgb(16, 21, 28)"} {
			b.do(media("prefers-color-scheme", scheme))
			require.Equal(t, background, eval[string](b, `getComputedStyle(document.body).backgroundColor`))
			b.axe()
		}
	}
}

// Filters and pages of the list are forms and links.
func TestDashboardWithoutJavaScript(t *testing.T) {
	s := startSite(t)
	s.fleet()
	s.awaitMetric(1, "unlocker_locks", "state", "orphaned")
	b := s.open("/?limit=3", withoutJavaScript())
	require.Equal(t, "3 of 8 locks", b.text("#shown"))
	b.do(chromedp.Click(chromedp.CSS(".pages a")))
	b.awaitText("tbody", "deploy/prod/checkout")
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=hostname]"), "search-2.example.org"), chromedp.Click(chromedp.CSS(".filter button")))
	b.awaitText("#shown", "1 of 1 locks that match")
	require.Contains(t, b.text("tbody"), "search/reindex")
	require.Contains(t, b.text("#live"), "refresh")
	require.Equal(t, "Times: UTC", b.text("#zone"))
}

// Times count down by the daemon's clock. Neither the clock of the holder nor that of the viewer has to be right.
func TestCountdown(t *testing.T) {
	s := startSite(t)
	taken := time.Now()
	slow := taken.Add(-time.Minute)
	s.Put(s.Lock("a", slow.Add(time.Hour), slow.Add(2*time.Hour), "locked_at", etcdtest.Stamp(slow), "alive_at", etcdtest.Stamp(slow))...)
	s.awaitMetric(1, "unlocker_locks")
	b := s.open("/", beforehand(`Date.now = () => { throw new Error("the clock of the viewer") }`))
	const held, alert = "tbody td:nth-child(5) time", "tbody td:nth-child(6) time"
	duration := func(text string) time.Duration {
		d, err := time.ParseDuration(strings.TrimPrefix(text, "in "))
		require.NoError(t, err, text)
		return d
	}
	first := b.text(alert)
	left, elapsed := duration(first), time.Since(taken)
	require.InDelta(t, time.Hour, left, float64(elapsed+2*time.Second))
	b.await(fmt.Sprintf("document.querySelector(%q).innerText !== %q", alert, first))
	require.Less(t, duration(b.text(alert)), left)
	age, elapsed := duration(b.text(held)), time.Since(taken)
	require.InDelta(t, 0, age, float64(elapsed+2*time.Second))
}

// An error is a page, too.
func TestPageOfAnError(t *testing.T) {
	s := startSite(t)
	b := s.open("/")
	b.expect("400")
	b.do(chromedp.Navigate(s.web + "/?state=dead"))
	require.Contains(t, b.text("h1"), `unknown state "dead"`)
	b.axe()
}

// A phone shows a card for each lock, and nothing to the right of the screen.
func TestSmallScreen(t *testing.T) {
	s := startSite(t)
	s.fleet()
	s.Set(strings.Repeat("long", 100), "uuid", "u", "hostname", strings.Repeat("h", 300), "owner", "o", "locked_at", etcdtest.Stamp(time.Now()))
	for _, width := range []int64{320, 390} {
		b := s.open("/", chromedp.EmulateViewport(width, 844, chromedp.EmulateMobile))
		b.await(isLive)
		b.awaitText("tbody", "longlong")
		require.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), width, eval[[]string](b, `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > `+fmt.Sprint(width)+`).map(e => e.outerHTML.slice(0, 99))`))
		require.Contains(t, eval[string](b, `getComputedStyle(document.querySelector("tbody td:nth-child(7)"), "::before").content`), "unlock")
		b.axe()
	}
}

// The viewer chooses the zone; without scripts it is UTC.
func TestZones(t *testing.T) {
	s := startSite(t)
	alert := time.Date(time.Now().Year()+1, 7, 1, 12, 0, 0, 0, time.UTC)
	s.Put(s.Lock("a", alert, alert.Add(time.Hour))...)
	s.awaitMetric(1, "unlocker_locks")
	const shown = "tbody td:nth-of-type(5) small"
	day := alert.Format("2006-01-02")
	require.Equal(t, day+" 12:00", s.open("/", withoutJavaScript()).text(shown))
	b := s.open("/", timezone("Europe/Berlin"))
	b.awaitText(shown, day+" 14:00")
	require.Equal(t, "Times: Europe/Berlin", b.text("#zone"))
	b.do(chromedp.Click(chromedp.CSS("#zone")))
	require.Equal(t, day+" 12:00", b.text(shown))
	b.do(chromedp.Reload())
	b.awaitText("#zone", "Times: UTC")
	b.awaitText(shown, day+" 12:00")

	// Every time of a page is in the zone that it names once, those of sentences and of inputs too. UTC is where the
	// pointer is.
	b = s.open("/locks/a", timezone("Europe/Berlin"), beforehand(`localStorage.removeItem("zone")`))
	b.awaitText("#zone", "Times: Europe/Berlin")
	b.await(`document.querySelector("#outlook p:last-child time")`)
	require.True(t, eval[bool](b, `[...document.querySelectorAll("main time[data-zone]")].every(at =>
		at.textContent.includes(new Date(at.dateTime).toLocaleTimeString("de", {timeZone: "Europe/Berlin", hour: "2-digit", minute: "2-digit"})))`))
	b.do(chromedp.Click(chromedp.CSS("#verdict summary")))
	b.awaitText("#verdict", "auto_unlock_at "+day+" 15:00:00.000")
	require.NotRegexp(t, `UTC|CES?T`, b.text("body"))
	b.do(hover("#facts time[data-zone]"))
	b.await(`/ UTC$/m.test(document.querySelector("#facts time[data-zone]").title)`)
	b = s.open("/", timezone("UTC"))
	b.awaitText("#zone", "Times: UTC")
}

// A lock can have anything in its fields.
func TestHostileLocksOnTheDashboard(t *testing.T) {
	s := startSite(t)
	const script = `"><script>window.pwned=1</script><img src=x onerror="window.pwned=1">`
	later := etcdtest.Stamp(time.Now().Add(time.Hour))
	for i, evil := range []string{script, "javascript:window.pwned=1", "\x1b[31m\x07", "\u202egnp.exe\u2066", "{{.}}${1}", "' onmouseover='window.pwned=1", strings.Repeat("Z͑͗͗͗", 50)} {
		name := fmt.Sprintf("evil/%d/%s", i, strings.ReplaceAll(evil, "/", "|"))
		s.Set(name, "uuid", evil, "hostname", evil, "owner", evil, "purpose", evil, "status", evil, "locked_at", evil, "alert_at", later, "auto_unlock_at", later)
	}
	s.Set("big", "purpose", strings.Repeat("<b>", 1<<18))
	s.Set("big", "uuid", strings.Repeat("u", 1<<20), "auto_unlock_at", later, "alert_at", later, "locked_at", later)
	var fields []string
	for i := range 10000 {
		fields = append(fields, fmt.Sprintf("field%d", i), "x")
	}
	s.Set("wide", append(fields, "uuid", "u", "auto_unlock_at", later, "alert_at", later, "locked_at", later)...)
	s.awaitMetric(9, "unlocker_locks")
	for _, before := range [][]chromedp.Action[chromedp.Void]{{withoutJavaScript()}, {}} {
		b := s.open("/", append(before, chromedp.EmulateViewport(1280, 640))...)
		b.await(`document.querySelectorAll("#locks tbody tr").length === 9`)
		require.False(t, eval[bool](b, `"pwned" in window`))
		require.Zero(t, eval[int](b, `document.querySelectorAll("main script, main img, main [onmouseover], main [onerror]").length`))
		require.NotRegexp(t, "[\x1b\u202e\u2066]", b.text("body"))
		require.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 1280)
		require.Less(t, eval[int](b, `document.documentElement.outerHTML.length`), 200_000)
		require.Less(t, eval[float64](b, `Math.max(...[...document.querySelectorAll("#locks tbody tr")].map(tr => tr.offsetHeight))`), 250.0)
	}
}

// fleet fills the etcd with locks in all states.
func (s *site) fleet() {
	now := time.Now()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	s.Put(slices.Concat(
		s.Lock("deploy/prod/checkout", at(-40), at(75), "owner", "deployer", "hostname", "ci-7.example.org", "locked_at", etcdtest.Stamp(at(-1320)),
			"purpose", "roll out checkout 2026.11.3", "status", "waiting for 2 of 14 pods"),
		s.Lock("billing/invoices/2026-11", at(-900), at(-600), "hostname", "worker-3.example.org", "locked_at", etcdtest.Stamp(at(-5400)),
			"purpose", "monthly invoices", "status", "customer 18220 of 45110"),
		s.Lock("reports/daily", at(25), at(55), "owner", "reports", "hostname", "worker-1.example.org", "locked_at", etcdtest.Stamp(at(-31)), "purpose", "daily report for finance"),
		s.Lock("search/reindex", at(900), at(1800), "owner", "search", "hostname", "search-2.example.org", "locked_at", etcdtest.Stamp(at(-8000)), "status", "shard 3 of 9"),
		s.Lock("backup/etcd", at(7200), at(90000), "owner", "backup", "hostname", "backup-1.example.org", "locked_at", etcdtest.Stamp(at(-90000))),
		s.Lock("migrate/users", at(600), at(1200), "owner", "migrations", "hostname", "worker-2.example.org", "alert_at", "soon"),
	)...)
	s.Set("cache/warm", "uuid", "u-cache", "hostname", "worker-4.example.org", "owner", "web", "locked_at", etcdtest.Stamp(at(-300)))
	s.Set("old/renewed", "auto_unlock_at", etcdtest.Stamp(at(100)), "alert_at", etcdtest.Stamp(at(50)))
}

// The pictures of the documentation.
func TestScreenshotsOfTheDashboard(t *testing.T) {
	s := newSite(t)
	s.fleet()
	s.serve(s.Endpoints()[0], "--web-allow-unlock", "--web-user-header", "X-User")
	for name, before := range map[string][]chromedp.Action[chromedp.Void]{
		"dashboard":       {chromedp.EmulateViewport(1280, 680)},
		"dashboard-dark":  {chromedp.EmulateViewport(1280, 680), media("prefers-color-scheme", "dark")},
		"dashboard-phone": {chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile)},
		"dashboard-wall":  {chromedp.EmulateViewport(2200, 500)},
	} {
		b := s.open("/", before...)
		b.await(isLive + ` && !document.querySelector("#notices li")`)
		b.awaitText("tbody", "billing/invoices")
		b.axe()
		b.screenshot(name)
	}
	b := s.open("/actions", chromedp.EmulateViewport(1280, 860), signedIn("ada"))
	b.enter("#select [name=match]", "{billing,deploy}/**"+kb.Enter)
	b.awaitText("#selected", "2 locks would be removed.")
	b.enter("#remove [name=confirm]", "2")
	b.enter("#remove [name=reason]", "ci-7 and worker-3 were replaced, OPS-1234")
	b.screenshot("actions")
}

// Locks of etcd's own clients have a page.
func TestNativeLocksInTheBrowser(t *testing.T) {
	s := newSite(t)
	session, err := concurrency.NewSession(s.Client)
	require.NoError(t, err)
	require.NoError(t, concurrency.NewMutex(session, "/locks/deploy").Lock(t.Context()))
	other, err := concurrency.NewSession(s.Client)
	require.NoError(t, err)
	require.ErrorIs(t, concurrency.NewMutex(other, "/locks/deploy").TryLock(t.Context()), concurrency.ErrLocked)
	require.NoError(t, concurrency.NewElection(other, "/locks/<b>leader").Campaign(t.Context(), "node-1 \u202e"))
	_, err = s.Client.Put(t.Context(), "/locks/left/694d9a3c1b7e5f02", "")
	require.NoError(t, err)
	s.serve(s.Endpoints()[0], "--native-prefixes", "/locks/,/none/")
	s.awaitMetric(3, "unlocker_native_locks", "prefix", "/locks/")
	s.awaitMetric(0, "unlocker_reaper_hold") // or a banner says so
	for _, scheme := range []string{"light", "dark"} {
		b := s.open("/native", chromedp.EmulateViewport(1280, 400), media("prefers-color-scheme", scheme))
		require.Contains(t, b.text("main"), "3 held, 0 waiting, as of")
		require.Contains(t, b.text("main"), "/locks/<b>leader \"node-1 \\u202e\"")
		require.Contains(t, b.text("main"), "none, stays until it is deleted")
		b.axe()
		b.screenshot("native-" + scheme)
	}
	s.fits("native", "/native")
	b := s.open("/native")
	require.NoError(t, session.Close())
	b.awaitText("main", "2 held, 0 waiting, as of")
}
