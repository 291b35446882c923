//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// axeVersion is the version of axe-core that .ci/run fetches.
const axeVersion = "4.14.1"

// site is an etcd, a daemon on it, and a browser.
type site struct {
	*etcdtest.Etcd
	*daemon
	t       *testing.T
	web     string // URL of the pages, without a slash at its end
	browser context.Context
}

// newSite starts an etcd and a browser, startSite also the daemon with flags that are added to
// those of startDaemon.
func newSite(t *testing.T) *site {
	t.Helper()
	return &site{t: t, browser: startBrowser(t), Etcd: etcdtest.Start(t, localetcd.Options{})}
}

func startSite(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t)
	s.serve(s.Endpoints()[0], flags...)
	return s
}

// serve starts the daemon. A browser may keep the machine busy for longer than the freshness of
// startDaemon.
func (s *site) serve(etcd string, flags ...string) {
	s.t.Helper()
	s.daemon = startDaemon(s.t, etcd, append([]string{"--reaper-freshness", "10s"}, flags...)...)
	s.web = "http://" + s.line(api.LogStarted)["web"].(string)
	s.awaitMetric(1, "unlocker_etcd_up")
}

// chromium is the browser of all tests: each has a context of its own in it, with its own cookies, cache and storage.
var chromium = sync.OnceValues(func() (context.Context, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WSURLReadTimeout(soon), chromedp.WindowSize(1280, 800))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with it
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(options, chromedp.ExecPath("chromium"))...)
	ctx, _ = chromedp.NewContext(ctx)
	stopChromium = func() {
		_ = chromedp.Cancel(ctx) // it waits until Chromium has ended
		cancel()
	}
	return ctx, chromedp.Do(ctx)
})

// stopChromium ends it if it was started.
var stopChromium = func() {}

// startBrowser returns a context of the browser that ends with the test.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	program(t, "chromium")
	ctx, err := chromium()
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	require.NoError(t, chromedp.Do(ctx))
	t.Cleanup(cancel)
	return ctx
}

// tab is a tab of the browser. Its test fails if the console has an error in the end, such as a
// violation of the Content-Security-Policy.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	console  []string
	expected *regexp.Regexp
}

// open opens a page in a new tab, after the actions.
func (s *site) open(path string, before ...chromedp.Action[chromedp.Void]) *tab {
	s.t.Helper()
	ctx, cancel := chromedp.NewContext(s.browser)
	tab := &tab{t: s.t, ctx: ctx}
	require.NoError(s.t, chromedp.Do(ctx))
	messages := chromedp.Console(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m, err := range messages {
			if err != nil {
				return
			}
			tab.note(m)
		}
	}()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the page %s has: %s", path, tab.text("body"))
		}
		cancel()
		<-done
		require.Empty(s.t, tab.console, "the console of the browser")
	})
	tab.do(before...)
	tab.do(chromedp.Navigate(s.web + path))
	return tab
}

func (b *tab) note(m chromedp.ConsoleMessage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.t.Context().Err() != nil {
		return // the test has ended, and with it the daemon
	}
	if (m.Type == "error" || m.IsException()) && (b.expected == nil || !b.expected.MatchString(m.String())) {
		b.console = append(b.console, m.String())
	}
}

// expect allows errors on the console from now on.
func (b *tab) expect(pattern string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = regexp.MustCompile(pattern)
}

// do performs actions, each within soon.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, action := range actions {
		ctx, cancel := context.WithTimeout(b.ctx, soon)
		err := chromedp.Do(ctx, action)
		cancel()
		require.NoError(b.t, err)
	}
}

// eval returns the value of a JavaScript expression, which may be a promise.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := tryEval[T](b, expression)
	require.NoError(b.t, err, expression)
	return value
}

func tryEval[T any](b *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// text returns the visible text of the first element that matches a CSS selector, on one line;
// "" if there is none.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return line(eval[string](b, innerText(selector)))
}

func innerText(selector string) string {
	return fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector)
}

func line(text string) string { return strings.Join(strings.Fields(text), " ") }

// await waits until a JavaScript expression is true.
func (b *tab) await(expression string) {
	b.t.Helper()
	awaitEval(b, "!!("+expression+")", func(is bool) bool { return is }, "%s", expression)
}

// awaitText waits until an element contains a text.
func (b *tab) awaitText(selector, text string) {
	b.t.Helper()
	awaitEval(b, innerText(selector), func(shown string) bool { return strings.Contains(line(shown), text) }, "%s does not contain %q", selector, text)
}

// awaitEval waits until the value of a JavaScript expression is as wanted. The page may navigate
// meanwhile, for which Chromium ends an evaluation by an error.
func awaitEval[T any](b *tab, expression string, wanted func(T) bool, message ...any) {
	b.t.Helper()
	for begin := time.Now(); ; pause(b.t, poll) {
		value, err := tryEval[T](b, expression)
		if refused := (*cdproto.Error)(nil); !errors.As(err, &refused) || refused.Message != "Inspected target navigated or closed" {
			require.NoError(b.t, err, expression)
			if wanted(value) {
				return
			}
		}
		if time.Since(begin) > soon {
			require.FailNow(b.t, "the page does not become what it should", message...)
		}
	}
}

// axe fails the test with what axe-core finds on the page.
func (b *tab) axe() {
	b.t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(b.t, err)
	source, err := os.ReadFile(filepath.Join(cache, "unlocker-tools", "axe-core-"+axeVersion, "axe.min.js"))
	if err != nil {
		missing(b.t, "%v: .ci/run fetches it", err)
	}
	b.do(chromedp.Evaluate[chromedp.Void](string(source)))
	found := eval[[]string](b, `axe.run().then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.html + ": " + n.failureSummary)))`)
	require.Empty(b.t, found, "axe-core")
}

// screenshot writes the page, or its first viewport, to the directory SCREENSHOTS, or with UPDATE=1
// to docs/screenshots, if one of them is set.
func (b *tab) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if os.Getenv("UPDATE") == "1" {
		dir = "../docs/screenshots"
	}
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// media emulates features of the device, given as pairs of a name and a value.
func media(pairs ...string) chromedp.Action[chromedp.Void] {
	var params emulation.SetEmulatedMediaParams
	for i := 0; i < len(pairs); i += 2 {
		params.Features = append(params.Features, &emulation.MediaFeature{Name: pairs[i], Value: pairs[i+1]})
	}
	return send(emulation.SetEmulatedMedia, params)
}

// withoutJavaScript turns scripts off.
func withoutJavaScript() chromedp.Action[chromedp.Void] {
	return send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// beforehand executes a script in each document before those of the document.
func beforehand(script string) chromedp.Action[chromedp.Void] {
	return send(cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: script})
}

// timezone sets the zone of the viewer.
func timezone(name string) chromedp.Action[chromedp.Void] {
	return send(emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: name})
}

func send[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, c, params)
		return chromedp.Void{}, err
	}
}
