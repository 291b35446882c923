package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// byHeader allows unlocks by the users of a proxy, and keeps the daemon from removing anything.
func byHeader(c *config.Config) {
	c.Web.AllowUnlock, c.Web.UserHeader, c.Reaper.Mode = true, "X-Forwarded-User", "off"
}

// postUnlock asks for an unlock, as a user of basic auth or with a header.
func (d *daemon) postUnlock(base, name, uuid, reason string, edit func(*http.Request)) (status int, answer string) {
	d.t.Helper()
	body, err := json.Marshal(api.Unlock{UUID: uuid, Reason: reason})
	require.NoError(d.t, err)
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, base+"/api/v1/locks/"+name+"/unlock", bytes.NewReader(body))
	require.NoError(d.t, err)
	req.Header.Set("Content-Type", "application/json")
	edit(req)
	resp, err := d.http.Do(req)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	return resp.StatusCode, string(text)
}

func (d *daemon) webURL() string { return "http://" + d.WebAddr() }

func as(user string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("X-Forwarded-User", user) }
}

func auditRecords(t *testing.T, e *etcdtest.Etcd) (all []api.Forced) {
	t.Helper()
	resp, err := e.Client.Get(t.Context(), auditPrefix, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		_, r, err := records.Parse(kv.Value, kv.ModRevision)
		require.NoError(t, err)
		require.NotZero(t, kv.Lease)
		all = append(all, r)
	}
	return all
}

// A person with a password removes a live lock. The record says who, when and why, and every replica
// logs, counts and shows it.
func TestUnlockByTheAPI(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	w := newWebFiles(t, withUsers(t, "ada", "secret"))
	alone := func(c *config.Config) { c.Election.Enabled = false } // or candidates get leases at any time
	d := startDaemon(t, e.Endpoints(), alone, func(c *config.Config) { c.Web.AllowUnlock, c.Web.WebConfigFile = true, w.path() })
	other := startDaemon(t, e.Endpoints(), alone, func(c *config.Config) { c.Reaper.Mode = "off" })
	later := time.Now().Add(time.Hour)
	e.Put(append(e.Lock("a/unlock", later, later, "ticket", "OPS-1"), e.Lock("a", later, later)...)...)
	d.awaitReady()
	other.awaitReady()
	ada := func(r *http.Request) { r.SetBasicAuth("ada", "secret") }

	status, answer := d.postUnlock(d.webURL(), "a/unlock", "u-a/unlock", "", func(*http.Request) {})
	require.Equal(t, http.StatusUnauthorized, status, answer)
	status, answer = d.postUnlock(d.webURL(), "a/unlock", "u-a", "", ada)
	require.Equal(t, http.StatusConflict, status, answer)
	require.Contains(t, answer, "held under another uuid")
	status, answer = d.postUnlock(other.webURL(), "a/unlock", "u-a/unlock", "", ada)
	require.Equal(t, http.StatusForbidden, status, answer)
	require.Empty(t, auditRecords(t, e))
	require.Len(t, e.Keys(""), 2*fieldsOfALock+1)
	leases, err := e.Client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases, "a refused unlock leaves no lease")

	status, answer = d.postUnlock(d.webURL(), "a/unlock", "u-a/unlock", "worker-1 was replaced", ada)
	require.Equal(t, http.StatusOK, status, answer)
	host, err := os.Hostname()
	require.NoError(t, err)
	var removed api.Forced
	require.NoError(t, json.Unmarshal([]byte(answer), &removed))
	require.Equal(t, []any{"a/unlock", verdict.Manual, "ada@" + host, "worker-1 was replaced"}, []any{removed.Name, removed.Trigger, removed.Who, removed.Reason})
	require.Contains(t, removed.Fields, api.Field{Name: "ticket", Value: "OPS-1"})
	require.Len(t, e.Keys("a/"), fieldsOfALock, "the lock a is another lock")
	records := auditRecords(t, e)
	require.Len(t, records, 1)
	require.Equal(t, []string{"a/unlock", "u-a/unlock", "ada@" + host, "worker-1 was replaced"},
		[]string{records[0].Name, records[0].UUID, records[0].Who, records[0].Reason})
	require.WithinDuration(t, time.Now(), records[0].At, etcdtest.Soon)
	for _, replica := range []*daemon{d, other} {
		replica.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "manual")
		require.Equal(t, "ada@"+host, replica.log.Lines(api.LogUnlocked)[0]["who"])
	}
	require.Equal(t, "ada@"+host, other.forced("a/unlock")[0].Who)
	lines := d.log.Lines(api.LogUnlockRequested)
	require.Len(t, lines, 2)
	require.Equal(t, []any{"ada@" + host, "a/unlock", "removed"}, []any{lines[1]["who"], lines[1]["lock"], lines[1]["outcome"]})
	require.Contains(t, lines[0]["outcome"], "another uuid")
	leases, err = e.Client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1, "that of the record")

	status, answer = d.postUnlock(d.webURL(), "a/unlock", "u-a/unlock", "", ada)
	require.Equal(t, http.StatusNotFound, status, answer)
}

// Where nothing authenticates users, the daemon does not start.
func TestUnlockNeedsUsers(t *testing.T) {
	w := newWebFiles(t, withTLS)
	c := newConfig(nowhere)
	c.Web.AllowUnlock, c.Web.WebConfigFile = true, w.path()
	_, err := app.New(c, (&etcdtest.Log{}).Logger())
	require.ErrorContains(t, err, "web.web_config_file: "+w.path()+" authenticates nobody")
}

func TestUnlockWithTheHeaderOfAProxy(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), byHeader, func(c *config.Config) { c.Web.PathPrefix = "/ops" })
	d.awaitReady()
	// The proxy knows who its users are, replaces what they claim, and changes the Host.
	target, err := url.Parse(d.webURL())
	require.NoError(t, err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Set("X-Forwarded-User", "ada")
	}})
	t.Cleanup(proxy.Close)
	later := time.Now().Add(time.Hour)
	for name, escaped := range map[string]string{"a/b": "a%2Fb", "a/b/c": "a/b/c", "ä ö?#%": "%C3%A4%20%C3%B6%3F%23%25", "x/unlock": "x%2Funlock"} {
		e.Put(e.Lock(name, later, later)...)
		var shown api.LockDetail
		resp, err := d.http.Get(proxy.URL + "/ops/api/v1/locks/" + escaped)
		require.NoError(t, err)
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&shown))
		require.NoError(t, resp.Body.Close())
		require.Equal(t, name, shown.Name)
		status, answer := d.postUnlock(proxy.URL+"/ops", escaped, shown.UUID, "", as("mallory"))
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, `"who": "ada@`)
	}
	require.Empty(t, e.Keys(""))

	e.Put(e.Lock("a", later, later)...)
	status, answer := d.postUnlock(d.webURL()+"/ops", "a", "u-a", "", func(*http.Request) {})
	require.Equal(t, http.StatusUnauthorized, status, answer)
	status, answer = d.postUnlock(proxy.URL+"/ops", "a", "u-a", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	require.Equal(t, http.StatusForbidden, status, answer)
	require.Len(t, e.Keys(""), fieldsOfALock)
}

// Nothing is removed silently: without space or right for the record, the lock stays.
func TestUnlockWithoutARecordRemovesNothing(t *testing.T) {
	t.Parallel()
	t.Run("no right", func(t *testing.T) {
		l := lockDown(t, localetcd.Options{})
		l.below(prefix)
		l.revoke(auditPrefix)
		l.read(auditPrefix)
		d := l.daemon(byHeader, func(c *config.Config) { c.Election.Enabled = false })
		d.awaitReady()
		later := time.Now().Add(time.Hour)
		l.Put(l.Lock("a", later, later)...)
		status, answer := d.postUnlock(d.webURL(), "a", "u-a", "", as("ada"))
		require.Equal(t, http.StatusBadGateway, status, answer)
		require.Contains(t, answer, "nothing was removed, as no record can be left")
		require.Contains(t, answer, "needs write on [/unlocker/audit/mutexes/")
		require.Len(t, l.Keys(""), fieldsOfALock)
		l.below(auditPrefix)
		status, answer = d.postUnlock(d.webURL(), "a", "u-a", "", as("ada"))
		require.Equal(t, http.StatusOK, status, answer)
	})
	t.Run("no space", func(t *testing.T) {
		e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
		d := startDaemon(t, e.Endpoints(), byHeader)
		d.awaitReady()
		later := time.Now().Add(time.Hour)
		e.Put(e.Lock("a", later, later)...)
		for i := 0; ; i++ {
			if _, err := e.Client.Put(t.Context(), "/fill", strings.Repeat("x", 512<<10)); err != nil {
				break
			}
			require.Less(t, i, 100)
		}
		status, answer := d.postUnlock(d.webURL(), "a", "u-a", "", as("ada"))
		require.Equal(t, http.StatusBadGateway, status, answer)
		require.Contains(t, answer, "database space exceeded")
		require.Len(t, e.Keys(""), fieldsOfALock)
	})
}

// What clients write into locks reaches API, log and record only bounded and escaped.
func TestHostileLocksByTheAPI(t *testing.T) {
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), byHeader)
	d.awaitReady()
	const script = "<img src=x onerror=alert(1)>\x1b[2J\u202egnp\u2028"
	later := time.Now().Add(time.Hour)
	names := map[string]int{"script": 0, "wide": 10_000, "large": 1}
	for name, more := range names {
		e.Put(e.Lock(name, later, later, "hostname", script, "owner", script, "purpose", script, "status", script, "backtrace", script, script, script)...)
		for i := 0; i < more && name == "wide"; i += 100 {
			var ops []clientv3.Op
			for j := range 100 {
				ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%s/%s%05d", prefix, name, script, i+j), script))
			}
			e.Put(ops...)
		}
	}
	e.Put(clientv3.OpPut(prefix+"large/stack", strings.Repeat(script, (1<<20)/len(script))))
	d.awaitMetric(3, "unlocker_locks", "state", "held")
	paths := []string{"/api/v1/locks", "/api/v1/locks?q=" + url.QueryEscape(script), "/api/v1/locks/" + url.PathEscape(script), "/api/v1/status"}
	for name := range names {
		paths = append(paths, "/api/v1/locks/"+name)
	}
	for _, path := range paths {
		resp, err := d.http.Get(d.webURL() + path)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		requireHarmless(t, string(body))
	}
	for name := range names {
		status, answer := http.StatusGatewayTimeout, ""
		for status == http.StatusGatewayTimeout { // a busy machine reads 10,000 fields slowly
			status, answer = d.postUnlock(d.webURL(), name, "u-"+name, script, as("ada<script>"))
			requireHarmless(t, answer)
		}
		require.Equal(t, http.StatusOK, status, answer)
	}
	require.Empty(t, e.Keys(""))
	d.awaitMetric(3, "unlocker_forced_unlocks_total", "trigger", "manual")
	resp, err := d.http.Get(d.webURL() + "/api/v1/forced-unlocks")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	requireHarmless(t, string(body))
	for _, r := range auditRecords(t, e) {
		require.LessOrEqual(t, len(records.Encode(prefix, r)), records.MaxBytes)
	}
	require.Less(t, d.longestLine(), 64<<10)
	require.NotContains(t, d.log.String(), "\x1b")
}

// requireHarmless requires JSON that neither a terminal nor a browser takes for anything else.
func requireHarmless(t *testing.T, body string) {
	t.Helper()
	require.True(t, json.Valid([]byte(body)))
	require.Less(t, len(body), 3<<20)
	for _, bad := range []string{"<", ">", "\x1b", "\u202e", "\u2028"} {
		require.NotContains(t, body, bad)
	}
}
