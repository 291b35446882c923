//go:build e2e

package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// hostile are texts that a client may write into any field, and into the name.
func hostile() map[string]string {
	return map[string]string{
		"script":     `"'><script>window.pwned=1</script><img src=x onerror=window.pwned=1>{{.}}</title><a href="javascript:pwned=1">`,
		"terminal":   "\x1b[2J\x1b]0;pwned\x07\x9b31mred\r\n\x00",
		"directions": "\u202epwned\u2066\u200f\u061c אבג \u2067 12 \u2029",
		"marks":      "a" + strings.Repeat("\u0301", 200) + strings.Repeat("\u200b", 50),
		"wide":       strings.Repeat("W", 3000),
	}
}

// Whatever a client writes, no page executes it, is displaced by it, or shows it as something else.
func TestHostileLocksOnPages(t *testing.T) {
	t.Parallel()
	s := startSite(t, "--web-allow-unlock", "--web-user-header", "X-User")
	names := map[string]string{}
	for kind, text := range hostile() {
		names[kind] = strings.ToValidUTF8(strings.Trim(strings.ReplaceAll(text, "//", "/"), "/"), "")
		fields := []string{"uuid", text[:min(len(text), 250)], "locked_at", fmt.Sprint(time.Now().Add(-2 * time.Hour).Unix()), text, text}
		for _, field := range []string{"hostname", "owner", "purpose", "status", "pid", "backtrace", "stack", "note"} {
			fields = append(fields, field, text)
		}
		s.Put(hostileOps(s, names[kind], fields)...)
		ticket := protocol.Ticket{UUID: "u", Hostname: text, Owner: text, PID: text, Purpose: text, Slots: 1000, Holds: []string{text[:min(len(text), 250)]}}
		for i, value := range []string{ticket.Value(), text} {
			s.Put(clientv3.OpPut(fmt.Sprintf("/unlocker/waiters%s%s//%d", s.Prefix, names[kind], i), value))
		}
	}
	names["large"], names["many"] = "large", "many"
	s.Put(s.Lock("large", time.Now(), time.Now().Add(time.Hour), "backtrace", strings.Repeat("main.go:1 main.main\n", 1<<20/20))...)
	many := s.Lock("many", time.Now(), time.Now().Add(time.Hour))
	for i := range 10_000 {
		many = append(many, clientv3.OpPut(fmt.Sprintf("%smany/%05d", s.Prefix, i), "x"))
	}
	s.Put(many...)
	s.awaitMetric(float64(len(names)), "unlocker_locks")

	now := fmt.Sprint(time.Now().Unix())
	for kind, name := range names {
		s.harmless(kind, "/locks/"+url.PathEscape(name), phone())
		s.harmless(kind, "/locks/"+url.PathEscape(name))
		s.harmless(kind, "/?q="+url.QueryEscape(name))
		// From now on it is past its deadline.
		s.Set(name, "uuid", "u", "locked_at", now, "alive_at", now, "auto_unlock_at", now)
	}
	s.harmless("all", "/health")
	s.awaitMetric(0, "unlocker_locks")
	for kind, name := range names {
		s.harmless(kind+"-removed", "/locks/"+url.PathEscape(name))
	}
	s.harmless("all", "/forced")
	s.harmless("all", "/forced", phone())
	require.NotContains(t, s.log.String(), "\x1b")
}

// The link of a lock leads to it also where the browser would resolve the name.
func TestLinksOfNamesOfDots(t *testing.T) {
	s := startSite(t)
	names := []string{".", "..", "a/../b", "a"}
	for _, name := range names {
		s.Set(name, "uuid", "u-"+name)
	}
	s.awaitMetric(4, "unlocker_locks")
	b := s.open("/")
	links := eval[map[string]string](b, `Object.fromEntries([...document.querySelectorAll("#rows th a")].map(a => [a.textContent, a.href]))`)
	require.Len(t, links, 4)
	for _, name := range names {
		b.do(chromedp.Navigate(links[name]))
		require.Equal(t, name, b.text("h1"))
		require.Equal(t, "u-"+name, b.text("#uuid"))
	}
}

// hostileOps are the writes of a lock, the name and the fields of which need not be valid.
func hostileOps(s *site, name string, fields []string) (ops []clientv3.Op) {
	for i := 0; i < len(fields); i += 2 {
		ops = append(ops, clientv3.OpPut(s.Prefix+name+"/"+strings.ReplaceAll(fields[i], "/", "|"), fields[i+1]))
	}
	return ops
}

// harmless fails the test unless a page with everything unfolded is what the daemon made it.
func (s *site) harmless(kind, path string, before ...chromedp.Action[chromedp.Void]) {
	s.t.Helper()
	b := s.open("/health", before...)
	b.expect("404")
	b.do(chromedp.Navigate(s.web + path))
	b.await(`document.querySelector("main")`)
	b.do(chromedp.Evaluate[chromedp.Void](`for (const d of document.querySelectorAll("details")) d.open = true`))
	require.False(s.t, eval[bool](b, `"pwned" in window`), "%s %s: a script was executed", kind, path)
	require.Zero(s.t, eval[int](b, `document.querySelectorAll("main script, main img, main style, main iframe, main a[href^=javascript]").length`), "%s %s", kind, path)
	require.False(s.t, eval[bool](b, `/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]/.test(document.body.textContent)`), "%s %s: characters that are not shown", kind, path)
	b.requireNoOverflow()
	require.Less(s.t, eval[int](b, `document.documentElement.outerHTML.length`), 4<<20, "%s %s", kind, path)
	b.axe()
	b.look(fmt.Sprintf("hostile-%s%s-%d", kind, strings.ReplaceAll(path[:min(len(path), 7)], "/", "-"), len(before)))
	b.do(chromedp.Navigate("about:blank"))
}
