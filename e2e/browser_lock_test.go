//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	billing   = "billing/invoices"
	backtrace = "billing/close.go:31 main.closeMonth\nbilling/close.go:77 main.run\nmain.go:12 main.main\n"
)

// hold takes the lock of billing, and waits until the daemon has seen it.
func (s *site) hold(alert, unlock time.Duration, fields ...string) {
	s.t.Helper()
	s.take(alert, unlock, fields...)
	s.awaitMetric(1, "unlocker_locks")
}

// take takes the lock of billing, with everything that a client may write.
func (s *site) take(alert, unlock time.Duration, fields ...string) {
	s.t.Helper()
	now := time.Now()
	s.Put(s.Lock(billing, now.Add(alert), now.Add(unlock), append([]string{
		"purpose", "close November", "status", "3 of 7 accounts", "pid", "4711", "backtrace", backtrace, "ticket", "OPS-1",
	}, fields...)...)...)
}

// release deletes the lock of billing.
func (s *site) release() {
	s.t.Helper()
	_, err := s.Client.Delete(context.Background(), s.Prefix+billing+"/", clientv3.WithPrefix())
	require.NoError(s.t, err)
	s.awaitMetric(0, "unlocker_locks")
}

// keepCopied keeps the word Copied on a button, which is there for two seconds otherwise.
func keepCopied() chromedp.Action[chromedp.Void] {
	return beforehand(`const wait = setTimeout; window.setTimeout = (f, ms, ...more) => ms === 2000 ? 0 : wait(f, ms, ...more)`)
}

func phone() chromedp.Action[chromedp.Void] {
	return send(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 390, Height: 844, DeviceScaleFactor: 2, Mobile: true})
}

// requireNoOverflow fails the test if the page is wider than the window.
func (b *tab) requireNoOverflow() {
	b.t.Helper()
	require.LessOrEqual(b.t, eval[int](b, `document.documentElement.scrollWidth`), eval[int](b, `document.documentElement.clientWidth`), "the page is wider than the window")
}

// look takes a screenshot that is not for the documentation.
func (b *tab) look(name string) {
	if os.Getenv("UPDATE") != "1" {
		b.screenshot(name)
	}
}

// fits requires that a page is not wider than the screen of a phone or a desktop, light and dark, and that it has texts.
// axe-core looks at each size and at each scheme once.
func (s *site) fits(name, path string, texts ...string) {
	s.t.Helper()
	b := s.open(path)
	for _, scheme := range []string{"light", "dark"} {
		for size, screen := range map[string]chromedp.Action[chromedp.Void]{"phone": phone(), "wide": chromedp.EmulateViewport(1400, 900)} {
			b.do(screen, media("prefers-color-scheme", scheme))
			for _, text := range texts {
				b.awaitText("body", text)
			}
			b.requireNoOverflow()
			if (size == "phone") == (scheme == "dark") {
				b.axe()
			}
			b.look(name + "-" + size + "-" + scheme)
		}
	}
	b.do(chromedp.Navigate("about:blank")) // a browser has few connections for the streams of tabs
}

func TestLockPage(t *testing.T) {
	s := startSite(t)
	s.hold(time.Hour, 2*time.Hour)
	s.release()
	s.hold(time.Hour, 2*time.Hour)
	s.Renew(billing, time.Now(), time.Now().Add(3*time.Hour))
	s.awaitMetric(0, "unlocker_reaper_hold")
	b := s.open("/locks/"+billing, keepCopied())
	b.awaitText("#outlook", "held Unless its holder renews or releases it, due in 2h59m. The lock is removed at ")
	require.Contains(t, b.text("#outlook"), "unless its holder renews it: grace 2s after auto_unlock_at")
	require.Contains(t, b.text("#facts"), "billing on worker-1, pid 4711")
	require.Contains(t, b.text("#history"), "released")
	require.Equal(t, 2, eval[int](b, `document.querySelectorAll("#history svg .known").length`))

	require.NotContains(t, b.text("#backtrace"), "main.run", "folded")
	b.do(chromedp.Click("#backtrace summary"))
	require.Contains(t, b.text("#backtrace"), "main.run")
	b.do(chromedp.Evaluate[chromedp.Void](`navigator.clipboard.writeText = async (text) => { window.copied = text }`), chromedp.Click("#backtrace .copy"))
	b.awaitText("#backtrace .copy", "Copied")
	require.Equal(t, backtrace, eval[string](b, `copied`))
	b.do(chromedp.Evaluate[chromedp.Void](`delete window.copied; Object.defineProperty(navigator, "clipboard", {value: undefined})
		document.addEventListener("copy", () => { window.copied = getSelection().toString() })`), chromedp.Click("#facts .copy"))
	b.awaitText("#facts .copy", "Copied")
	require.Equal(t, "u-"+billing, eval[string](b, `copied`), "without HTTPS there is no navigator.clipboard")

	for name, before := range map[string][]chromedp.Action[chromedp.Void]{
		"lock-light": nil, "lock-dark": {media("prefers-color-scheme", "dark")}, "lock-phone": {phone()}, "lock-plain": {withoutJavaScript()},
	} {
		b := s.open("/locks/"+billing, before...)
		b.awaitText("#outlook", "due in ")
		b.requireNoOverflow()
		b.look(name)
		if name != "lock-plain" {
			b.do(chromedp.Evaluate[chromedp.Void](`for (const d of document.querySelectorAll("details")) d.open = true`))
			b.axe()
			b.requireNoOverflow()
			b.look(name + "-unfolded")
		}
	}
}

// A history that etcd no longer has is not made up.
func TestLockPageAfterACompaction(t *testing.T) {
	s := startSite(t)
	s.hold(time.Hour, 2*time.Hour)
	s.release()
	s.hold(time.Hour, 2*time.Hour, "hostname", "worker-2")
	taken := s.Set(billing, "status", "4 of 7 accounts")
	_, err := s.Client.Compact(t.Context(), taken)
	require.NoError(t, err)
	b := s.open("/locks/" + billing)
	b.awaitText("#history", fmt.Sprintf("Cut off by compaction: etcd has removed all revisions before %d. Who held the lock before that is not known.", taken))
	require.Contains(t, b.text("#periods"), "worker-2")
	require.NotContains(t, b.text("#periods"), "worker-1")
	b.look("lock-compacted")
}

// What the reader has opened stays open while the page follows the lock, and the focus stays where it is.
func TestLockPageFollowsTheLock(t *testing.T) {
	s := startSite(t)
	s.hold(time.Hour, 2*time.Hour)
	b := s.open("/locks/" + billing)
	b.await(`/in 5\dm\d\ds/.test(document.querySelector("#facts").innerText)`)
	b.do(chromedp.Evaluate[chromedp.Void](`window.shown = document.querySelector("#facts").innerText`))
	b.await(`document.querySelector("#facts").innerText !== window.shown`) // it counts
	b.do(chromedp.Click("#fields summary"))
	require.Contains(t, b.text("#fields"), "OPS-1")

	s.Set(billing, "ticket", "OPS-2", "status", "4 of 7 accounts")
	b.awaitText("#facts", "4 of 7 accounts")
	b.awaitText("#fields", "OPS-2")
	require.True(t, eval[bool](b, `document.activeElement === document.querySelector("#fields summary")`), "the focus moved")

	b.expect("404")
	s.Renew(billing, time.Now(), time.Now().Add(time.Second))
	b.awaitText("#lock", "There is no such lock now.")
	b.awaitText("#removals", "Removed by replica ")
	require.Contains(t, b.text("#removals"), "its holder missed its deadline")
	require.Contains(t, b.text("#history"), "removed by a replica after its deadline")
	b.axe()
	b.screenshot("lock-gone")

	s.hold(time.Hour, 2*time.Hour, "hostname", "worker-2")
	b.awaitText("#facts", "worker-2")
	b.awaitText("#removals", "expiry")
	s.Renew(billing, time.Now(), time.Now().Add(2*time.Hour))
	b.do(chromedp.Navigate(s.web + "/locks/" + billing))
	b.awaitText("#periods tbody tr", "worker-2")
	require.Contains(t, b.text("#periods tbody tr"), "1 least margin 100 %")
	b.do(chromedp.Click("#renewals summary"))
	require.Contains(t, b.text("#renewals"), "100 %")
	b.screenshot("lock-history")
	b.do(chromedp.Evaluate[chromedp.Void](`scrollTo(0, 0)`))
	b.screenshot("lock")
}

// The link of an alert leads here, also after the removal.
func TestPagesOfForcedUnlocks(t *testing.T) {
	s := startSite(t)
	s.awaitMetric(1, "unlocker_leader")
	s.take(0, time.Second) // the daemon may have removed it before a scrape sees it
	b := s.open("/forced")
	b.awaitText("main", "Every replica shows this for a day")
	require.Contains(t, b.text("main"), ", the leader.")
	b.awaitText("#removals", billing)
	b.screenshot("forced")
	b.do(chromedp.Evaluate[chromedp.Void](`for (const d of document.querySelectorAll("#removals details")) d.open = true`))
	for _, want := range []string{"expiry", "worker-1", "OPS-1", "close November", "auto_unlock_at", "deadline"} {
		require.Contains(t, b.text("#removals"), want)
	}
	b.axe()
	b.look("forced-unfolded")
	for name, before := range map[string][]chromedp.Action[chromedp.Void]{"forced-light": nil, "forced-dark": {media("prefers-color-scheme", "dark")}, "forced-phone": {phone()}} {
		b := s.open("/forced", before...)
		b.axe()
		b.requireNoOverflow()
		b.look(name)
	}
	b = s.open("/forced?name=other")
	require.Contains(t, b.text("main"), "There is none of the last day.")
	b.expect("404")
	b.do(chromedp.Navigate(s.web + "/locks/" + billing))
	require.Contains(t, b.text("main"), "There is no such lock now.")
	require.Contains(t, b.text("#removals"), "its holder missed its deadline")
}

func TestHealthPage(t *testing.T) {
	s := startSite(t)
	s.hold(time.Hour, 2*time.Hour)
	s.Renew(billing, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	b := s.open("/health")
	b.awaitText("#etcd", "Connection up")
	b.awaitText("#replicas", "this replica")
	b.awaitText("#clocks", "worker-1 1h00m slow")
	b.awaitText("#removal", "None: locks are removed when they are due.")
	b.axe()
	b.look("health")
	s.Kill(0)
	b.awaitText("#etcd", "Connection down")
	b.awaitText("#removal", "disconnected")
	b.await(`document.querySelector("#notices .stale").textContent.includes([...document.querySelectorAll("#etcd dt")].find(t => t.textContent === "Last error")?.nextElementSibling.textContent)`)
	b.screenshot("health-down")
	for name, before := range map[string][]chromedp.Action[chromedp.Void]{"health-light": nil, "health-dark": {media("prefers-color-scheme", "dark")}, "health-phone": {phone()}} {
		b := s.open("/health", before...)
		b.axe()
		b.requireNoOverflow()
		b.look(name)
	}
	b = s.open("/locks/" + billing)
	require.Contains(t, b.text("#outlook"), "etcd cannot be read. This is what the watch showed last")
	require.Contains(t, b.text("#facts"), "worker-1")
	b.axe()
	b.look("lock-without-etcd")
}

// Everything on the page of a lock can be done with the keyboard, and it says when the daemon does not answer.
func TestLockPageByKeyboard(t *testing.T) {
	s := startSite(t)
	s.hold(time.Hour, 2*time.Hour)
	b := s.open("/locks/"+billing, keepCopied())
	b.awaitText("#facts", "worker-1")
	press := func(key, until string) {
		t.Helper()
		for range 60 {
			if eval[bool](b, fmt.Sprintf(`document.activeElement.matches(%q)`, until)) {
				return
			}
			b.do(chromedp.KeyEvent(key))
		}
		require.FailNow(t, "the keyboard does not reach "+until)
	}
	press("\t", ".skip")
	require.True(t, eval[bool](b, `document.querySelector(".skip").getBoundingClientRect().left >= 0`))
	b.do(chromedp.KeyEvent(kb.Enter))
	press("\t", "#backtrace summary")
	require.NotEqual(t, "none", eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`), "the focus is visible")
	b.do(chromedp.KeyEvent(kb.Enter))
	require.Contains(t, b.text("#backtrace"), "main.run")
	press("\t", "#backtrace .copy")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.awaitText("#backtrace .copy", "Copied")
	press("\t", "#backtrace-text")

	b.expect("Failed to load resource|ERR_")
	s.daemon.kill()
	b.awaitText("#lost", "The connection to unlocker is lost: Failed to fetch (the page is as of ")
	require.Contains(t, b.text("#facts"), "worker-1")
	require.Contains(t, b.text("#backtrace"), "main.run", "what was opened stays")
	b.axe()
	b.look("lock-lost")
}
