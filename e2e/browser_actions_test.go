//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// enter types into a field of a form, from the beginning.
func (b *tab) enter(field, text string) {
	b.t.Helper()
	b.do(chromedp.Focus(field), chromedp.Evaluate[chromedp.Void](`document.activeElement.value = ""`), chromedp.KeyEvent(text))
}

// What the page has shown is removed once its number is typed, and nothing where others match by then.
func TestUnlockManyFromThePage(t *testing.T) {
	s := startSite(t, "--web-allow-unlock", "--web-user-header", "X-User")
	hostile := "n/\x1b[2J\u202e<img src=x onerror=alert(1)>"
	later := time.Now().Add(time.Hour)
	for _, name := range []string{"n/a", hostile, "other"} {
		s.Put(s.Lock(name, later, later, "owner", "billing", "hostname", "worker-1")...)
	}
	s.fits("actions-empty", "/actions")
	b := s.open("/actions", phone(), signedIn("ada"))
	require.Contains(t, b.text("main"), "You are signed in as ada@")
	require.Equal(t, "Actions", b.text("header [aria-current]"))
	disabled := func() bool { return eval[bool](b, `document.querySelector("#remove button").disabled`) }
	show := func(n string) {
		t.Helper()
		b.enter("#select [name=match]", "n/*"+kb.Enter)
		b.awaitText("#selected", n+" locks would be removed.")
	}
	// Hints are not broken, and what is to be removed begins where the form does.
	require.True(t, eval[bool](b, `[...document.querySelectorAll(".act .muted")].every(e => e.getClientRects().length === 1)`))
	show("2")
	require.Less(t, eval[float64](b, `document.querySelector("#locks-selected bdi").getBoundingClientRect().left`), 60.0)
	require.Contains(t, b.text("#locks-selected"), `n/a held by billing on worker-1`)
	require.NotContains(t, b.text("#locks-selected"), "\u202e")
	require.True(t, disabled())
	b.enter("#remove [name=reason]", "OPS-1")
	b.enter("#remove [name=confirm]", "3")
	require.True(t, disabled())
	b.enter("#remove [name=confirm]", "2")
	require.False(t, disabled())
	b.axe()
	b.requireNoOverflow()
	b.look("actions")

	s.Put(s.Lock("n/new", later, later)...)
	s.open("/?q=n/new").awaitNames("n/new")
	b.expect("409")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.awaitText("#outcome", "nothing was removed: the digest is of other locks")
	require.Empty(t, s.records())

	show("3")
	b.enter("#remove [name=reason]", "OPS-1")
	b.enter("#remove [name=confirm]", "3"+kb.Enter)
	b.awaitText("#outcome", "You removed 3 locks.")
	require.Contains(t, b.text("#result"), "3 of 3 removed, 0 refused, 0 unknown, 0 not tried")
	b.axe()
	b.look("actions-done")
	require.Len(t, s.records(), 3)
	for _, r := range s.records() {
		require.Equal(t, "OPS-1", r.Reason)
	}
	require.NotEmpty(t, s.Keys("other"))
}

// A user pauses and resumes, with their name.
func TestPauseFromThePage(t *testing.T) {
	s := startSite(t, "--web-allow-unlock", "--web-user-header", "X-User")
	b := s.open("/actions", phone())
	require.Contains(t, b.text("main"), "You cannot act: ")
	require.Zero(t, eval[int](b, `document.querySelectorAll("main :is(button, input, select):enabled").length`))
	b.axe()
	b.look("actions-nobody")
	b = s.open("/actions", phone(), signedIn("ada"))
	require.Contains(t, b.text("#pauses"), "Nothing is paused.")
	b.enter("#pause [name=match]", "deploy/**")
	b.enter("#pause [name=reason]", "OPS-1"+kb.Enter)
	b.awaitText("#outcome", "Paused: deploy/**.")
	b.awaitText("#pauses", "deploy/** by ada@")
	b.awaitText("#pauses", "OPS-1 ends in 1h59m")
	b.awaitText("#notices", "Removals are paused: deploy/**, by ada@")
	b.requireNoOverflow()
	b.axe()
	b.look("actions-paused")
	b.do(chromedp.Focus("#pauses button"), chromedp.KeyEvent(kb.Enter))
	b.awaitText("#outcome", "Resumed: deploy/**.")
	b.awaitText("#pauses", "Nothing is paused.")

	s.Put(s.Lock("a*b", time.Now().Add(time.Hour), time.Now().Add(time.Hour))...)
	s.awaitMetric(1, "unlocker_locks", "state", "held")
	b = s.open("/locks/a*b", signedIn("ada"))
	b.do(chromedp.Click(chromedp.CSS("a[href*=actions][href*=match]")))
	b.enter("#pause [name=reason]", "I look"+kb.Enter)
	b.awaitText("#pauses", `a\*b by ada@`)
}
