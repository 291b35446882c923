//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// isLive is true on a page that is connected and has shown its first window.
const isLive = `document.querySelector("#live.on")`

// names are those of the rows, in their order.
func (b *tab) names() []string {
	b.t.Helper()
	return eval[[]string](b, `[...document.querySelectorAll("#locks tbody th a")].map(a => a.textContent)`)
}

func (b *tab) awaitNames(names ...string) {
	b.t.Helper()
	b.await(fmt.Sprintf(`[...document.querySelectorAll("#locks tbody th a")].map(a => a.textContent).join(" ") === %q`, strings.Join(names, " ")))
}

// The rows and the banner that scripts build are those that the daemon renders.
func TestLiveTableIsThePage(t *testing.T) {
	s := newSite(t)
	now := time.Now()
	s.Put(s.Lock("late/patience", now.Add(-time.Minute), now.Add(time.Minute), "locked_at", etcdtest.Stamp(now.Add(-2*time.Hour)))...)
	s.serve(s.Endpoints()[0], "--reaper-mode", "dry-run")
	b := s.open("/")
	b.await(isLive)
	s.fleet()
	s.Put(s.Lock("late/grace", time.Now(), time.Now())...)
	s.Set("a \u202eb/<i>", "uuid", "u", "purpose", "<b>\x1b", "owner", "o&p", "hostname", "h=1", "locked_at", etcdtest.Stamp(time.Now()))
	_, err := exec.CommandContext(t.Context(), unlocker, "pause", "--match", "cache/**", "--for", "1h", "--reason", "OPS-1", "--etcd-endpoints", s.Endpoints()[0]).CombinedOutput()
	require.NoError(t, err)
	b.await(`document.querySelectorAll("#locks tbody tr").length === 11 && document.querySelectorAll("#notices li").length === 2`)
	b.await(`[...document.querySelectorAll("#locks tbody tr")].some(tr => /late.grace.*would be removed, but/.test(tr.textContent))`)
	part := `(root, selector) => root.querySelector(selector).innerHTML.replace(/(<time[^>]*>)[^<]*/g, "$1")
		.replace(/ (class="(soon|changed)?"|title="[^"]*")/g, "").replace(/\n/g, "")`
	for _, selector := range []string{"#locks tbody", "#notices"} {
		// What the page shows may be a moment older.
		awaitEval(b, fmt.Sprintf(`fetch("/").then(r => r.text()).then(html => {
			const part = %s;
			return [part(new DOMParser().parseFromString(html, "text/html"), %q), part(document, %q)];
		})`, part, selector, selector), func(same []string) bool { return same[0] == same[1] }, "%s", selector)
	}
	require.Empty(t, eval[[]string](b, `[...document.querySelectorAll("main b, main i")].map(e => e.textContent).filter(t => !/^[\d,]+$|:$/.test(t))`))
}

func TestRowsComeChangeAndGo(t *testing.T) {
	s := startSite(t)
	b := s.open("/")
	b.await(isLive)
	b.awaitText("#none", "There are no locks under /mutexes/.")
	later := time.Now().Add(time.Hour)
	s.Put(s.Lock("a", later, later.Add(time.Hour), "purpose", "nightly")...)
	b.awaitNames("a")
	require.Contains(t, b.text("tbody"), "nightly")
	require.Equal(t, "1 of 1 locks", b.text("#shown"))
	b.awaitText("#count-held", "1")
	s.Set("a", "status", "half")
	b.awaitText("tbody", "half")
	// A lock that is overdue comes first.
	s.Put(s.Lock("b", time.Now().Add(time.Second), later)...)
	b.awaitNames("b", "a")
	b.awaitText("tbody tr", "overdue")
	b.await(`document.title.startsWith("(1 overdue)")`)
	b.awaitText("#count-overdue", "1")
	s.remove("b")
	b.awaitNames("a")
	s.remove("a")
	b.await(`!document.getElementById("none").hidden`)
}

// remove deletes a lock as its holder does.
func (s *site) remove(name string) {
	s.t.Helper()
	for _, key := range s.Keys(name + "/") {
		_, err := s.Client.Delete(s.t.Context(), s.Prefix+key)
		require.NoError(s.t, err)
	}
}

// Rows stay where they are while a reader looks at them; their values change.
func TestOrderWaitsForTheReader(t *testing.T) {
	s := startSite(t)
	later := time.Now().Add(time.Hour)
	s.Put(s.Lock("a", later, later)...)
	s.Put(s.Lock("b", later.Add(time.Minute), later.Add(time.Minute))...)
	b := s.open("/", chromedp.EmulateViewport(1280, 360))
	b.await(isLive + ` && !document.querySelector("#notices li")`) // the table does not move any more
	b.awaitNames("a", "b")
	changes := func() {
		t.Helper()
		s.Set("a", "status", "seen")
		b.awaitText("tbody", "seen")
		s.Put(s.Lock("c", time.Now().Add(-time.Second), later)...)
		s.remove("b")
		b.awaitText("#reorder", "2 changes, reorder")
		require.Equal(t, []string{"a", "b"}, b.names())
		b.awaitText("tbody tr:nth-child(2)", "gone")
	}
	again := func() {
		s.remove("c")
		b.awaitNames("a")
		s.Set("a", "status", "new")
		s.Put(s.Lock("b", later.Add(time.Minute), later.Add(time.Minute))...)
		b.awaitNames("a", "b")
	}
	// The pointer.
	b.do(hover("tbody tr"))
	changes()
	b.axe()
	b.screenshot("reader")
	b.do(chromedp.Click(chromedp.CSS("#reorder")), hover("#shown"))
	b.awaitNames("c", "a")
	again()
	// The focus, which stays where it is although the lock changes.
	b.do(chromedp.Focus(chromedp.CSS("tbody th a")))
	changes()
	require.Equal(t, "a", eval[string](b, `document.activeElement.textContent`))
	b.do(chromedp.Focus(chromedp.CSS("#reorder")), chromedp.KeyEvent(kb.Enter))
	b.awaitNames("c", "a")
	require.Equal(t, "c", eval[string](b, `document.activeElement.textContent`), "the button is gone, the focus is not")
	b.do(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
	again()
	// Nobody reads.
	s.Put(s.Lock("c", time.Now().Add(-time.Second), later)...)
	b.awaitNames("c", "a", "b")
}

// hover moves the pointer over an element.
func hover(selector string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		box, err := chromedp.Dimensions(chromedp.CSS(selector))(ctx, target)
		if err != nil {
			return chromedp.Void{}, err
		}
		return chromedp.MouseEvent(chromedp.MouseMoved, box.Content[0]+5, box.Content[1]+5)(ctx, target)
	}
}

// The filter is in the URL, holds for what is live, and for the links in the page.
func TestFilters(t *testing.T) {
	s := newSite(t)
	s.fleet()
	s.serve(s.Endpoints()[0])
	s.awaitMetric(1, "unlocker_locks", "state", "undated")
	b := s.open("/")
	b.await(isLive)
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=q]"), "e"), chromedp.SendKeys(chromedp.CSS("input[name=owner]"), "search"+kb.Enter))
	b.await(`location.search === "?q=e&owner=search" && ` + isLive)
	b.awaitNames("search/reindex")
	require.Equal(t, "1 of 1 locks that match", b.text("#shown"))
	later := time.Now().Add(time.Hour)
	s.Put(s.Lock("search/delete", later, later, "owner", "search")...)
	s.Put(s.Lock("other", later, later)...)
	b.await(`document.querySelectorAll("#locks tbody tr").length === 2`)
	b.do(chromedp.Click(chromedp.CSS("a[href*='state=held']")))
	b.await(`location.search === "?owner=search&q=e&state=held" && ` + isLive)
	b.awaitText(".counts [aria-current]", "held 5") // once the page shows the one that does not match, too
	b.do(chromedp.NavigateBack())
	b.await(`location.search === "?q=e&owner=search" && ` + isLive)
	b.do(chromedp.Click(chromedp.CSS(".filter a.button")))
	b.await(`location.search === "" && ` + isLive)
	b.do(chromedp.Click(chromedp.CSS("a[href='?hostname=worker-2.example.org']")))
	b.awaitNames("migrate/users")
	b.do(chromedp.Navigate(s.web + "/?state=orphaned&q=none"))
	b.awaitText("#none", "No lock matches the filter.")
	b.axe()
}

// A hold is told with its reason, and so is its end.
func TestHoldBanner(t *testing.T) {
	s := newSite(t)
	s.fleet()
	s.serve(s.Endpoints()[0])
	b := s.open("/", chromedp.EmulateViewport(1280, 560))
	b.await(isLive)
	etcd := []string{"--etcd-endpoints", s.Endpoints()[0]}
	_, err := exec.CommandContext(t.Context(), unlocker, append(etcd, "pause", "--for", "1h", "--reason", "migration OPS-1")...).CombinedOutput()
	require.NoError(t, err)
	b.awaitText("#notices", "No lock is removed:")
	b.awaitText("#notices", "migration OPS-1")
	b.axe()
	b.screenshot("hold")
	_, err = exec.CommandContext(t.Context(), unlocker, append(etcd, "resume")...).CombinedOutput()
	require.NoError(t, err)
	b.await(`!document.querySelector("#notices li")`)
}

// What an incident shows fits the screens: a storm, a pause, a silent holder, a malformed lock, and removals.
func TestPagesOfAnIncident(t *testing.T) {
	s := newSite(t)
	s.serve(s.Endpoints()[0], "--reaper-storm-min-locks", "3", "--reaper-storm-delay", "1h", "--web-allow-unlock", "--web-user-header", "X-User")
	s.awaitMetric(0, "unlocker_reaper_hold")
	const long = "etl/warehouse/customers-and-orders-of-the-last-quarter/"
	hour := time.Now().Add(time.Hour)
	milliseconds := fmt.Sprint(hour.UnixMilli())
	s.Put(s.Lock(long+"malformed", hour, hour, "auto_unlock_at", milliseconds)...)
	s.Put(s.Lock(long+"silent", hour, hour, "hostname", "batch-worker-17.eu-central-1.example.org")...)
	b := s.open("/")
	etcdtest.Eventually(t, func() bool {
		s.Renew(long+"silent", time.Now(), hour)
		return strings.Contains(b.text("#rows"), "renewed ")
	})
	s.open("/?silent=true").awaitNames(long + "silent")
	actions := s.open("/actions", phone(), signedIn("ada"))
	actions.do(chromedp.Click("#select [name=silent]"))
	actions.enter("#select [name=match]", "**"+kb.Enter)
	actions.awaitText("#selected", "1 lock of silent holders would be removed.")
	require.Contains(t, actions.text("#locks-selected"), long+"silent")
	out, err := exec.CommandContext(t.Context(), unlocker, "--etcd-endpoints", s.Endpoints()[0], "pause", "--match", long+"kept/**", "--for", "1h", "--reason", "OPS-1").CombinedOutput()
	require.NoError(t, err, string(out))
	at := time.Now().Add(time.Second)
	for i := range 5 {
		s.Put(s.Lock(fmt.Sprintf("%s%d", long, i), at, at, "owner", "batch")...)
	}
	const storm = "Many locks came due at once: 3 removed before it, 2 more wait."
	b.awaitText("#notices", storm)
	for name, path := range map[string]string{"incident": "/", "silent": "/locks/" + long + "silent"} {
		b := s.open(path, chromedp.EmulateViewport(1280, 640))
		b.awaitText("body", "not renewed for")
		b.awaitText("#notices", storm)
		b.screenshot(name)
	}
	s.fits("incident", "/", storm, "not renewed for", "Removals are paused: "+long+"kept/**")
	s.fits("incident-grouped", "/?group=hostname", storm, "batch-worker-17.eu-central-1.example.org")
	// Why a lock is malformed is not cut off.
	for _, screen := range []chromedp.Action[chromedp.Void]{phone(), chromedp.EmulateViewport(1400, 900)} {
		b := s.open("/?state=malformed", screen)
		b.awaitText("#rows", `is "`+milliseconds+`": it looks like milliseconds, and the unit is seconds`)
		b.await(`[...document.querySelectorAll("#rows th small")].every(e => e.scrollHeight <= e.clientHeight)`)
	}
	s.fits("malformed", "/locks/"+long+"malformed", `auto_unlock_at is "`+milliseconds+`"`, "it looks like milliseconds")
	s.fits("silent", "/locks/"+long+"silent", "not renewed for", "Ask")
	s.fits("forced", "/forced", storm, long)
	s.fits("health", "/health", storm, "except those that a pause below matches, and those that the storm delays.")
}

// Every page says during a storm how many locks were removed before it, and how many wait until when.
func TestStormBanner(t *testing.T) {
	s := newSite(t)
	s.serve(s.Endpoints()[0], "--reaper-storm-min-locks", "3", "--reaper-storm-delay", "1h")
	b := s.open("/", chromedp.EmulateViewport(1280, 560))
	b.await(isLive)
	s.awaitMetric(0, "unlocker_reaper_hold")
	at := time.Now().Add(time.Second)
	for i := range 5 {
		s.Put(s.Lock(fmt.Sprintf("batch/%d", i), at, at, "owner", "batch")...)
	}
	const says = "Many locks came due at once: 3 removed before it, 2 more wait."
	b.awaitText("#notices", says)
	b.axe()
	b.screenshot("storm")
	delayed := eval[string](b, `document.querySelector("#rows a").getAttribute("href")`)
	for _, path := range []string{delayed, "/forced", "/native", "/health"} {
		require.Contains(t, s.open(path).text("#notices"), says, path)
	}
	require.Contains(t, s.open("/health").text("#removal"), "None: locks are removed when they are due, except those that the storm delays.")
}

// What the daemon does not know, the page does not claim to know.
func TestLostEtcd(t *testing.T) {
	s := newSite(t)
	s.fleet()
	proxy := s.Proxy(0)
	s.serve("http://" + proxy.Addr())
	b := s.open("/", chromedp.EmulateViewport(1280, 560))
	b.await(isLive)
	proxy.Cut()
	b.awaitText("#notices", "The connection to etcd is lost.")
	b.awaitText("#notices", "(the list is as of ")
	b.awaitText("#live", "not live: no connection to etcd")
	require.True(t, eval[bool](b, `document.getElementById("live").className === "off" && document.getElementById("locks").className === "stale"`))
	b.awaitText("#notices", "No lock is removed:")
	b.axe()
	b.screenshot("lost-etcd")
	require.NoError(t, proxy.Heal())
	b.await(`!document.querySelector("#notices li.bad")`)
	b.await(isLive)
}

func TestLostDaemon(t *testing.T) {
	addr := etcdtest.FreeAddr(t)
	s := newSite(t)
	s.fleet()
	s.serve(s.Endpoints()[0], "--web-listen", addr)
	b := s.open("/", chromedp.EmulateViewport(1280, 560), media("prefers-color-scheme", "dark"))
	b.await(isLive + ` && !document.querySelector("#notices li")`)
	b.expect("ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|CONNECTION_RESET|EMPTY_RESPONSE)")
	s.kill()
	b.awaitText("#lost", "The connection to unlocker is lost:")
	b.awaitText("#live", "not live, next attempt in")
	b.axe()
	b.screenshot("lost-daemon")
	later := time.Now().Add(time.Hour)
	s.Put(s.Lock("meanwhile", later, later)...)
	s.serve(s.Endpoints()[0], "--web-listen", addr)
	b.await(isLive)
	b.awaitText("tbody", "meanwhile")
	require.True(t, eval[bool](b, `document.getElementById("lost").hidden`))
}

// A connection that died without a word is noticed by the missing heartbeat.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	s := startSite(t)
	direct, err := url.Parse(s.web)
	require.NoError(t, err)
	proxy, err := localetcd.NewProxy(direct.Host)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	s.web = "http://" + proxy.Addr()
	b := s.open("/")
	b.await(isLive)
	proxy.Blackhole()
	b.awaitText("#lost", "the daemon is silent")
	require.NoError(t, proxy.Heal())
	b.await(isLive)
}

// A proxy serves the pages below a prefix.
func TestPathPrefixInTheBrowser(t *testing.T) {
	s := startSite(t, "--web-path-prefix", "/unlocker")
	s.fleet()
	b := s.open("/unlocker/")
	b.await(isLive)
	b.awaitText("tbody", "backup/etcd")
	b.do(chromedp.Click(chromedp.CSS("tbody th a")))
	b.await(`location.pathname.startsWith("/unlocker/locks/")`)
}

// All works without a pointer, and the focus is visible.
func TestKeyboardOnly(t *testing.T) {
	s := startSite(t)
	s.fleet()
	b := s.open("/")
	b.await(isLive)
	focus := func() string {
		require.NotEqual(t, "none", eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`), "the focus is visible")
		return eval[string](b, `document.activeElement.textContent || document.activeElement.name`)
	}
	press := func(keys string) { b.do(chromedp.KeyEvent(keys)) }
	press(kb.Tab)
	require.Equal(t, "Skip to the content", focus())
	press(kb.Enter)
	press(kb.Tab)
	require.Contains(t, focus(), "all")
	for focus() != "q" {
		press(kb.Tab)
	}
	press("cache" + kb.Enter)
	b.await(`location.search === "?q=cache" && ` + isLive)
	for range 100 {
		press(kb.Tab)
		if focus() == "cache/warm" {
			break
		}
	}
	press(kb.Enter)
	b.await(`location.pathname === "/locks/cache/warm"`)
}

// A lock that was renewed in the last moment is told before it is lost.
func TestNearMissesOnTheDashboard(t *testing.T) {
	s := startSite(t, "--reaper-grace", "10s")
	b := s.open("/", chromedp.EmulateViewport(1280, 560))
	b.await(isLive + ` && document.getElementById("near").hidden`)
	const patience = 2 * time.Second
	end := time.Now().Add(patience)
	s.Put(s.Lock("late", end, end)...)
	s.Put(s.Lock("reports/quarterly/customers", end, end, "owner", "billing-batch", "hostname", "batch-worker-17.eu-central-1.example.org")...)
	b.awaitNames("late", "reports/quarterly/customers")
	<-time.After(time.Until(end))
	s.Renew("late", time.Now(), time.Now().Add(patience))
	s.Renew("reports/quarterly/customers", time.Now(), time.Now().Add(patience))
	b.await(`!document.getElementById("near").hidden`)
	require.Regexp(t, `late billing ?worker-1 \d % 1`, b.text("#near tbody"))
	b.axe()
	require.Contains(t, s.open("/", withoutJavaScript()).text("#near tbody"), "late")
	b.awaitText("#near", "customers")
	b.screenshot("near")
	s.fits("near", "/")
}

// A page that nobody sees gives its connection back: browsers open six to a host.
func TestHiddenPage(t *testing.T) {
	t.Parallel()
	s := startSite(t)
	b := s.open("/")
	b.await(isLive)
	turn := func(hidden bool) {
		b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %t, configurable: true});
			document.dispatchEvent(new Event("visibilitychange"))`, hidden)))
	}
	b.do(chromedp.Evaluate[chromedp.Void](`const abort = AbortController.prototype.abort;
		AbortController.prototype.abort = function (...why) { window.left = true; abort.apply(this, why); }`))
	turn(true)
	b.await(`window.left`) // after half a minute: a page that is hidden for a moment keeps its connection
	later := time.Now().Add(time.Hour)
	s.Put(s.Lock("meanwhile", later, later)...)
	s.awaitMetric(1, "unlocker_locks")
	<-time.After(2 * time.Second) // a page with a connection has shown it by now
	require.Empty(t, b.names())
	turn(false)
	b.awaitNames("meanwhile")
}
