//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// signedIn sets the header of a proxy that says who makes a request.
func signedIn(who string) chromedp.Action[chromedp.Void] {
	return send(network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"X-User": who}})
}

// records returns the records of manual unlocks in etcd.
func (s *site) records() (all []api.Forced) {
	s.t.Helper()
	resp, err := s.Client.Get(s.t.Context(), "/unlocker/audit/mutexes/", clientv3.WithPrefix())
	require.NoError(s.t, err)
	for _, kv := range resp.Kvs {
		_, r, err := records.Parse(kv.Value, kv.ModRevision)
		require.NoError(s.t, err)
		all = append(all, r)
	}
	return all
}

// unlock types the name and why with the keyboard, and removes the lock.
func (b *tab) unlock(reason string) {
	b.t.Helper()
	b.do(chromedp.Focus("#unlock [name=confirm]"), chromedp.KeyEvent("billing/invoice"))
	require.True(b.t, eval[bool](b, `document.querySelector("#unlock button").disabled`), "the name is not complete")
	b.do(chromedp.KeyEvent("s"), chromedp.KeyEvent("\t"), chromedp.KeyEvent(" "))
	require.True(b.t, eval[bool](b, `document.querySelector("#unlock button").disabled`), "a blank reason is refused")
	b.do(chromedp.KeyEvent(reason))
	require.False(b.t, eval[bool](b, `document.querySelector("#unlock button").disabled`))
	b.do(chromedp.KeyEvent(kb.Enter))
}

func TestUnlockFromThePage(t *testing.T) {
	s := startSite(t, "--web-allow-unlock", "--web-user-header", "X-User")
	s.hold(time.Hour, 2*time.Hour)
	plain := s.open("/locks/"+billing, withoutJavaScript())
	require.Contains(t, plain.text("#lock"), "Removing it from this page needs JavaScript.")
	require.Contains(t, plain.text("#command"), "unlocker unlock billing/invoices --uuid=u-billing/invoices")

	b := s.open("/locks/"+billing, signedIn("ada"))
	require.Contains(t, b.text("#unlock"), "It is held by billing on worker-1 under the uuid u-billing/invoices")
	require.Contains(t, b.text("#unlock"), "You are signed in as ada@")
	b.axe()
	b.do(chromedp.ScrollIntoView("#unlock button"))
	b.look("unlock")
	b.expect("404")
	b.unlock("OPS-1: the host is gone")
	b.awaitText("#outcome", "You removed the lock at revision ")
	b.awaitText("#lock", "There is no such lock now.")
	b.awaitText("#removals", "Removed by ada")
	require.Contains(t, b.text("#outcome"), "You removed the lock", "it stays")
	require.Contains(t, b.text("#history"), "unlocked manually")
	b.axe()
	b.look("unlock-done")
	records := s.records()
	require.Len(t, records, 1)
	require.Contains(t, records[0].Who, "ada")
	require.Equal(t, []string{billing, "u-" + billing, "OPS-1: the host is gone"}, []string{records[0].Name, records[0].UUID, records[0].Reason})
	require.Empty(t, s.Keys(billing))
}

// A URL with a user and a password works: fetch refuses what is relative to it.
func TestPasswordInTheURL(t *testing.T) {
	users := filepath.Join(t.TempDir(), "web.yaml")
	const secret = "$2a$04$CgJaVZjuJjncd8.YnjQHg.J.tvhPvjOhf4mjzec6995pkd75tAPK2"
	require.NoError(t, os.WriteFile(users, []byte("basic_auth_users: {ada: "+secret+"}\n"), 0o600))
	s := startSite(t, "--web-web-config-file", users, "--web-allow-unlock")
	s.hold(time.Hour, 2*time.Hour)
	s.web = strings.Replace(s.web, "://", "://ada:secret@", 1)
	s.open("/").await(isLive)
	b := s.open("/locks/" + billing)
	b.expect("404")
	b.unlock("OPS-1")
	b.awaitText("#outcome", "You removed the lock at revision ")
	b.awaitText("#lock", "There is no such lock now.")
	require.True(t, eval[bool](b, `document.getElementById("lost").hidden`))
	require.Contains(t, s.records()[0].Who, "ada")
}

// The page says what happened where nothing was removed.
func TestUnlockFromThePageIsRefused(t *testing.T) {
	addr := etcdtest.FreeAddr(t)
	s := startSite(t, "--web-allow-unlock", "--web-user-header", "X-User", "--web-listen", addr)
	s.hold(time.Hour, 2*time.Hour)
	refused := func(b *tab, status, want string) {
		t.Helper()
		b.expect(status + "|404|ERR_") // the tabs stay open until the end
		b.unlock("OPS-1")
		b.awaitText("#outcome", "Nothing was removed"+want)
		require.NotEmpty(t, s.Keys(billing+"/uuid"))
		require.Empty(t, s.records())
	}
	b := s.open("/locks/" + billing)
	require.Contains(t, b.text("#unlock"), "You cannot remove it: ")
	refused(b, "401", ": the proxy did not say who you are.")
	b.look("unlock-refused")

	b = s.open("/locks/"+billing, signedIn("ada"))
	b.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("unlock").dataset.uuid = ""`))
	refused(b, "400", ". The daemon says: ")
	b = s.open("/locks/"+billing, signedIn("ada"))
	b.expect("404|ERR_") // it stays open, too
	b.unlock(strings.Repeat("ä", 300))
	require.Equal(t, "The record has room for 512 bytes.", eval[string](b, `document.querySelector("#unlock [name=reason]").validationMessage`))
	require.Empty(t, b.text("#outcome"), "nothing was sent")

	// The reader is faster than the page, which asks for itself again every few seconds: it gets no
	// answer before that to the request of the reader.
	faster := beforehand(`const get = fetch; window.fetch = (url, options) =>
		options?.method === "POST" ? get(url, options).finally(() => { window.fetch = get }) : new Promise(() => {})`)
	b = s.open("/locks/"+billing, signedIn("ada"), faster)
	s.Set(billing, "uuid", "u-2")
	refused(b, "409", ": the lock has another holder now, under another uuid.")
	b.awaitText("#unlock", "under the uuid u-2")

	b = s.open("/locks/"+billing, signedIn("ada"), faster)
	code, _ := s.end(syscall.SIGTERM)
	require.Zero(t, code)
	s.serve(s.Endpoints()[0], "--web-listen", addr)
	refused(b, "403", ": removing locks from the page is turned off")
	code, _ = s.end(syscall.SIGTERM)
	require.Zero(t, code)
	s.serve(s.Endpoints()[0], "--web-allow-unlock", "--web-user-header", "X-User", "--web-listen", addr)

	b = s.open("/locks/"+billing, signedIn("ada"), faster)
	s.release()
	b.expect("404")
	b.unlock("OPS-1")
	b.awaitText("#outcome", "Nothing was removed: there is no such lock any more.")
	b.awaitText("#lock", "There is no such lock now.")
	require.Empty(t, s.records())
}

func TestAskFromThePage(t *testing.T) {
	s := startSite(t, "--web-allow-unlock", "--web-user-header", "X-User")
	locks, err := mutex.New(s.Client, mutex.KeepAlive(time.Hour))
	require.NoError(t, err)
	l, err := locks.TryLock(t.Context(), "asked")
	require.NoError(t, err)
	b := s.open("/locks/asked", signedIn("ada"))
	b.do(chromedp.Click("[data-ask]"))
	b.awaitText("#outcome", "Its process answers: its stack and status are of now.")
	b.awaitText("#facts", "Answered")
	b.awaitText("#stack", "Stack when alert_at passed, or when asked")
	b.axe()
	b.look("ask")
	b.expect("404")
	require.NoError(t, l.Unlock(t.Context()))

	s.hold(time.Hour, 2*time.Hour)
	b = s.open("/locks/"+billing, signedIn("ada"))
	b.expect("504")
	b.do(chromedp.Click("[data-ask]"))
	b.awaitText("#outcome", "No answer: its process does not answer within 5s; last renewed at ")
}
