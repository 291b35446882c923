package web

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/web/page"
)

func TestPages(t *testing.T) {
	for path, want := range map[string]string{
		"/":            `href="/p/locks/%3Cb%3E`,
		"/locks/a/b":   "<h1><bdi>a/b</bdi></h1>",
		"/locks/a%2Fb": "<h1><bdi>a/b</bdi></h1>",
		"/forced":      `href="/p/locks/a"`,
		"/health":      "<h1>Health</h1>",
	} {
		server, _ := newServer(t, &source{}, "/p")
		resp, body := get(t, "GET", server.URL+"/p"+path)
		require.Equal(t, http.StatusOK, resp.status, body)
		require.Contains(t, body, want)
		require.Equal(t, "text/html; charset=utf-8", resp.header.Get("Content-Type"))
		require.Equal(t, page.Policy, resp.header.Get("Content-Security-Policy"))
		require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
		require.NotContains(t, body, "<b>\x1b")
		require.NotContains(t, body, "\u202e")
		for _, asset := range regexp.MustCompile(`(?:src|href)="(/p/assets/[^"]+)"`).FindAllStringSubmatch(body, -1) {
			resp, _ := get(t, "GET", server.URL+asset[1])
			require.Equal(t, http.StatusOK, resp.status, asset[1])
			require.Contains(t, resp.header.Get("Cache-Control"), "immutable")
		}
	}
}

// An error is a page, too, for those who follow a link of an alert.
func TestErrorsOfPages(t *testing.T) {
	server, _ := newServer(t, &source{err: ErrNoLock}, "")
	resp, body := get(t, "GET", server.URL+"/locks/a")
	require.Equal(t, http.StatusNotFound, resp.status)
	require.Equal(t, "text/html; charset=utf-8", resp.header.Get("Content-Type"))
	require.Contains(t, body, "<h1>no such lock</h1>")
	resp, _ = get(t, "POST", server.URL+"/")
	require.Equal(t, http.StatusMethodNotAllowed, resp.status)
}

// A replica of another version is asked for assets of this one during an upgrade.
func TestAssets(t *testing.T) {
	server, _ := newServer(t, &source{}, "")
	resp, _ := get(t, "GET", server.URL+"/assets/other/style.css")
	require.Equal(t, http.StatusOK, resp.status)
	require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
	require.Equal(t, "text/css; charset=utf-8", resp.header.Get("Content-Type"))
	resp, _ = get(t, "GET", server.URL+"/assets/other/none.css")
	require.Equal(t, http.StatusNotFound, resp.status)
}
