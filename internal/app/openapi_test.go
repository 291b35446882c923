package app_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// contract is the OpenAPI document, made strict: it refuses fields that it does not have.
type contract struct {
	*openapi3.T
	t *testing.T
	// seen are the operations and statuses that were answered.
	seen map[string]bool
}

const documentFile = "../web/openapi.yaml"

func readContract(t *testing.T) *contract {
	t.Helper()
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", func(body io.Reader, h http.Header, s *openapi3.SchemaRef, e openapi3filter.EncodingFn) (any, error) {
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		require.Len(t, lines, 2)
		var first any
		require.NoError(t, json.Unmarshal(lines[0], &first))
		require.NoError(t, s.Value.VisitJSON(first))
		return openapi3filter.JSONBodyDecoder(bytes.NewReader(lines[1]), h, s, e)
	})
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.JSONBodyDecoder) // of the data of one event
	text, err := os.ReadFile(documentFile)
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(text)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	doc.Servers = nil
	for _, ref := range doc.Components.Schemas {
		flatten(ref.Value)
		if s := ref.Value; s.AdditionalProperties.Schema == nil && len(s.Properties) > 0 {
			s.AdditionalProperties = openapi3.AdditionalProperties{Has: new(bool)}
		}
	}
	return &contract{doc, t, map[string]bool{}}
}

// flatten makes one object of several, each of which would refuse the fields of the others.
func flatten(s *openapi3.Schema) {
	for _, part := range s.AllOf {
		if s.Properties == nil {
			s.Properties = openapi3.Schemas{}
		}
		flatten(part.Value)
		maps.Copy(s.Properties, part.Value.Properties)
		s.Required = append(s.Required, part.Value.Required...)
		s.Type = part.Value.Type
	}
	s.AllOf = nil
}

// validate returns how an answer differs from the document.
func (c *contract) validate(path string, req *http.Request, status int, header http.Header, body []byte) error {
	item := c.Paths.Find(path)
	return openapi3filter.ValidateResponse(c.t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: req, Route: &routers.Route{Spec: c.T, Path: path, PathItem: item, Method: req.Method, Operation: item.GetOperation(req.Method)},
		},
		Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
}

// ask sends a request, and requires that its answer is documented.
func (c *contract) ask(d *daemon, method, path, query, body string, header ...string) (status int) {
	c.t.Helper()
	target := strings.Replace(path, "{name}", "held", 1) + query
	if strings.HasPrefix(query, "=") { // the name
		target = strings.Replace(path, "{name}", url.PathEscape(query[1:]), 1)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, d.webURL()+target, strings.NewReader(body))
	require.NoError(c.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := d.http.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	require.NoError(c.t, c.validate(path, req, resp.StatusCode, resp.Header, text), "%s %s: %d %s", method, target, resp.StatusCode, text)
	c.seen[method+" "+path+" "+strconv.Itoa(resp.StatusCode)] = true
	return resp.StatusCode
}

// stream reads events, the first ones and those after a change, until there was one of a lock.
func (c *contract) stream(d *daemon, change func()) {
	c.t.Helper()
	const path = "/api/v1/events"
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, d.webURL()+path, nil)
	require.NoError(c.t, err)
	resp, err := d.http.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	types := map[string]bool{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for !types["lock"] && lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		require.NoError(c.t, c.validate(path, req, resp.StatusCode, resp.Header, []byte(data)), data)
		var event api.Event
		require.NoError(c.t, json.Unmarshal([]byte(data), &event))
		if types[event.Type] = true; event.Type == "status" && change != nil {
			change()
			change = nil
		}
	}
	require.True(c.t, types["reset"] && types["status"] && types["lock"], types)
	c.seen["GET "+path+" 200"] = true
}

// The document has the paths of the handler, and no others.
func TestOpenAPIHasEveryPath(t *testing.T) {
	files, err := filepath.Glob("../web/*.go")
	require.NoError(t, err)
	served := map[string]bool{"/api/v1/locks/{name}/unlock": true, "/api/v1/locks/{name}/ask": true}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(literal.Value, `"/api/v1/`) {
				path, err := strconv.Unquote(literal.Value)
				require.NoError(t, err)
				if strings.HasSuffix(path, "/") {
					path += "{name}"
				}
				served[path] = true
			}
			return true
		})
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(served)), readContract(t).Paths.InMatchingOrder())
}

// The schemas have the fields of the types, and no others.
func TestOpenAPIHasEveryField(t *testing.T) {
	c := readContract(t)
	compared := map[string]bool{"State": true, "Time": true, "Duration": true, "Revision": true, "Margin": true}
	for _, answer := range []any{api.LockPage{}, api.LockDetail{}, api.ForcedList{}, api.History{}, api.NativeList{}, api.WaiterList{}, api.DeadlockList{}, api.Event{}, api.Status{}, api.Unlock{}, api.UnlockMany{}, api.Selection{}, api.Unlocked{}, api.PauseList{}, api.PauseRequest{}, api.Error{}} {
		c.compare(reflect.TypeOf(answer), compared)
	}
	for name := range c.Components.Schemas {
		require.True(t, compared[name], "schema %s is of no type", name)
	}
}

// compare compares a struct with the schema of the same name, and so the structs in it.
func (c *contract) compare(of reflect.Type, compared map[string]bool) {
	c.t.Helper()
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() || compared[of.Name()] {
		return
	}
	compared[of.Name()] = true
	ref := c.Components.Schemas[of.Name()]
	require.NotNil(c.t, ref, "no schema %s", of.Name())
	var names, required []string
	for _, field := range reflect.VisibleFields(of) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			continue // embedded: its fields are visible, too
		}
		names = append(names, name)
		optional := strings.HasPrefix(options, "omit")
		for i := 1; i < len(field.Index); i++ { // what embeds it may be nil
			optional = optional || of.FieldByIndex(field.Index[:i]).Type.Kind() == reflect.Pointer
		}
		if !optional {
			required = append(required, name)
		}
		c.compare(field.Type, compared)
	}
	require.ElementsMatch(c.t, names, slices.Collect(maps.Keys(ref.Value.Properties)), "schema %s", of.Name())
	require.ElementsMatch(c.t, required, ref.Value.Required, "required in schema %s", of.Name())
}

// Whatever a real daemon answers is documented: successes, refusals, and what it says without etcd.
func TestAnswersAreAsDocumented(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) {
		c.Web.AllowUnlock, c.Web.UserHeader = true, "X-Forwarded-User"
		c.NativePrefixes = []string{"/native/"}
	})
	d.awaitReaping()
	now, later := time.Now(), time.Now().Add(time.Hour)
	for name, times := range map[string][2]time.Time{"held": {later, later}, "overdue": {now, later}, "due": {now, now}, "other": {later, later}} {
		e.Put(e.Lock(name, times[0], times[1], "purpose", "p", "status", "s", "owner", "billing", "alive_at", etcdtest.Stamp(now), "stack", strings.Repeat("x", 100<<10))...)
	}
	e.Put(clientv3.OpPut(prefix+"bad/uuid", "u"), clientv3.OpPut(prefix+"bad/auto_unlock_at", "soon"),
		clientv3.OpPut(prefix+"orphan/alert_at", etcdtest.Stamp(now)), clientv3.OpPut(prefix+"undated/uuid", "u"))
	lease, err := e.Client.Grant(t.Context(), 600)
	require.NoError(t, err)
	for _, key := range []string{fmt.Sprintf("/native/a/%x", lease.ID), "/native/a/1234"} {
		e.Put(clientv3.OpPut(key, "candidate", clientv3.WithLease(lease.ID)))
	}
	e.Put(clientv3.OpPut("/unlocker/waiters"+prefix+"held//1", protocol.Ticket{UUID: "u-1", Hostname: "h", PID: "1", Owner: "o", Purpose: "p", Since: now, Slots: 2, Holds: []string{"u-x"}}.Value()),
		clientv3.OpPut("/unlocker/waiters"+prefix+"other//1", protocol.Ticket{UUID: "u-2", Since: now, Holds: []string{"u-other"}}.Value()),
		clientv3.OpPut("/unlocker/waiters"+prefix+"held//2", "{"))
	people, err := admin.Open(newConfig(e.Endpoints()), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, err = people.Pause(t.Context(), admin.Who(), "nothing/**", time.Hour, "a test")
	require.NoError(t, err)
	require.NoError(t, people.Close())
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	d.awaitMetric(6, "unlocker_locks")
	etcdtest.Eventually(t, func() bool {
		var list api.NativeList
		return d.getAPI("/api/v1/native", &list) == http.StatusOK && len(list.Prefixes[0].Holders) == 1 && len(list.Prefixes[0].Holders[0].Waiters) == 1
	})

	etcdtest.Eventually(t, func() bool { return d.page()["held"].Waiters == 2 })
	d.awaitMetric(1, "unlocker_deadlocks")

	c := readContract(t)
	const list, one, unlock = "/api/v1/locks", "/api/v1/locks/{name}", "/api/v1/locks/{name}/unlock"
	get := func(path, query string) int { return c.ask(d, http.MethodGet, path, query, "") }
	for path, queries := range map[string][]string{
		list:                     {"", "?sort=urgency&limit=2", "?state=overdue,malformed&q=a&hostname=h&owner=billing"},
		one:                      {"", "=overdue", "=bad", "=orphan", "=undated"},
		"/api/v1/history":        {"?name=held", "?name=due"},
		"/api/v1/native":         {""},
		"/api/v1/deadlocks":      {""},
		"/api/v1/waiters":        {"?name=held", "?name=none"},
		"/api/v1/forced-unlocks": {"", "?name=due"}, "/api/v1/status": {""}, "/api/v1/openapi.yaml": {""},
	} {
		for _, query := range queries {
			// A history may take too long on a busy machine, which is documented, too.
			etcdtest.Eventually(t, func() bool { return get(path, query) == http.StatusOK }, path+query)
		}
		require.Equal(t, http.StatusBadRequest, get(path, "?unknown=1"))
	}
	require.Equal(t, http.StatusNotFound, get(one, "=absent"))
	require.Equal(t, http.StatusBadRequest, get("/api/v1/events", "?unknown=1"))
	c.stream(d, func() { e.Put(clientv3.OpPut(prefix+"new/uuid", "u")) })

	locks, err := mutex.New(e.Client, mutex.Prefix(prefix))
	require.NoError(t, err)
	asked, err := locks.TryLock(t.Context(), "asked")
	require.NoError(t, err)
	question := func(name, user string) int {
		return c.ask(d, http.MethodPost, "/api/v1/locks/{name}/ask", "="+name, "", "X-Forwarded-User", user)
	}
	require.Equal(t, http.StatusOK, question("asked", "ada"))
	require.NoError(t, asked.Unlock(t.Context()))
	require.Equal(t, http.StatusNotFound, question("asked", "ada"))
	require.Equal(t, http.StatusConflict, question("orphan", "ada"))
	require.Equal(t, http.StatusUnauthorized, question("held", ""))
	require.Equal(t, http.StatusGatewayTimeout, question("held", "ada"), "its process does not answer")

	post := func(name, body string, header ...string) int {
		return c.ask(d, http.MethodPost, unlock, "="+name, body, append([]string{"Content-Type", "application/json", "X-Forwarded-User", "ada"}, header...)...)
	}
	require.Equal(t, http.StatusOK, post("held", `{"uuid": "u-held", "reason": "why"}`))
	require.Equal(t, http.StatusNotFound, post("held", `{"uuid": "u-held"}`))
	require.Equal(t, http.StatusConflict, post("other", `{"uuid": "u-held"}`))
	require.Equal(t, http.StatusConflict, post("orphan", `{"uuid": "u-held"}`))
	require.Equal(t, http.StatusBadRequest, post("other", `{}`))
	require.Equal(t, http.StatusUnauthorized, post("other", `{}`, "X-Forwarded-User", ""))
	require.Equal(t, http.StatusForbidden, post("other", `{}`, "Sec-Fetch-Site", "cross-site"))
	require.Equal(t, http.StatusUnsupportedMediaType, post("other", `{}`, "Content-Type", "text/plain"))
	require.Equal(t, http.StatusRequestEntityTooLarge, post("other", strings.Repeat(" ", 5000)))
	require.Equal(t, http.StatusOK, get("/api/v1/forced-unlocks", "?name=held"))
	many := func(body string, header ...string) int {
		return c.ask(d, http.MethodPost, "/api/v1/unlock", "", body, append([]string{"Content-Type", "application/json", "X-Forwarded-User", "ada"}, header...)...)
	}
	pauses := func(method, query, body string, header ...string) int {
		return c.ask(d, method, "/api/v1/pauses", query, body, append([]string{"Content-Type", "application/json", "X-Forwarded-User", "ada"}, header...)...)
	}
	const post1h = `{"match": "none/**", "for": "1h", "reason": "why"}`
	require.Equal(t, http.StatusOK, pauses(http.MethodPost, "", post1h))
	require.Equal(t, http.StatusOK, pauses(http.MethodGet, "", ""))
	require.Equal(t, http.StatusBadRequest, pauses(http.MethodPost, "", `{"for": "1s", "reason": "why"}`))
	require.Equal(t, http.StatusForbidden, pauses(http.MethodPost, "", post1h, "Sec-Fetch-Site", "cross-site"))
	require.Equal(t, http.StatusForbidden, pauses(http.MethodDelete, "?all=true", "", "Sec-Fetch-Site", "cross-site"))
	require.Equal(t, http.StatusUnauthorized, pauses(http.MethodDelete, "?all=true", "", "X-Forwarded-User", ""))
	require.Equal(t, http.StatusUnsupportedMediaType, pauses(http.MethodPost, "", post1h, "Content-Type", "text/plain"))
	for query, status := range map[string]int{"": 400, "?all=1": 400, "?all=true&match=none/**": 400, "?all=true": 404} {
		require.Equal(t, status, pauses(http.MethodDelete, query, ""), query)
	}
	require.Equal(t, http.StatusOK, pauses(http.MethodDelete, "?match=none/**", ""))
	require.Equal(t, http.StatusOK, many(`{"match": "**", "silent": true}`))
	require.Equal(t, http.StatusOK, many(`{"match": "ne*"}`))
	selected := d.selects(api.UnlockMany{Match: "ne*"})
	require.Equal(t, http.StatusOK, many(fmt.Sprintf(`{"match": "ne*", "digest": %q, "reason": "why"}`, selected.Digest)))
	require.Equal(t, http.StatusConflict, many(`{"match": "**", "digest": "d", "reason": "why"}`))
	require.Equal(t, http.StatusBadRequest, many(`{"match": "["}`))
	require.Equal(t, http.StatusUnauthorized, many(`{}`, "X-Forwarded-User", ""))
	require.Equal(t, http.StatusForbidden, many(`{}`, "Sec-Fetch-Site", "cross-site"))
	require.Equal(t, http.StatusUnsupportedMediaType, many(`{}`, "Content-Type", "text/plain"))
	require.Equal(t, http.StatusRequestEntityTooLarge, many(strings.Repeat(" ", 5000)))
	selected = d.selects(api.UnlockMany{Match: "other"})

	proxy.Cut()
	etcdtest.Eventually(t, func() bool { return get(one, "=other") >= http.StatusBadGateway })
	require.GreaterOrEqual(t, post("other", `{"uuid": "u-other"}`), http.StatusBadGateway)
	require.GreaterOrEqual(t, many(fmt.Sprintf(`{"match": "other", "digest": %q, "reason": "why"}`, selected.Digest)), http.StatusBadGateway)
	require.Equal(t, http.StatusOK, get("/api/v1/status", ""))

	w := newWebFiles(t, withUsers(t, "ada", "secret"))
	guarded := startDaemon(t, nowhere, func(c *config.Config) { c.Web.WebConfigFile = w.path() })
	for path, item := range c.Paths.Map() {
		for method := range item.Operations() {
			require.Equal(t, http.StatusUnauthorized, c.ask(guarded, method, path, "", ""))
			require.True(t, c.seen[method+" "+path+" 200"], "%s %s was not asked successfully", method, path)
		}
	}
}

// A field, a status or a type that the document lacks is found.
func TestContractIsStrict(t *testing.T) {
	c := readContract(t)
	check := func(path string, status int, media, body string) error {
		return c.validate(path, httptest.NewRequest(http.MethodGet, "/", nil), status, http.Header{"Content-Type": {media}}, []byte(body))
	}
	const good = `{"name": "a", "state": "held", "token": 1, "revision": 1, "keys": 1, "fields": []}`
	const one, typ = "/api/v1/locks/{name}", "application/json; charset=utf-8"
	require.NoError(t, check(one, 200, typ, good))
	for _, bad := range []string{
		strings.Replace(good, `"fields"`, `"more": 1, "fields"`, 1), strings.Replace(good, `, "keys": 1`, "", 1),
		strings.Replace(good, `"held"`, `"free"`, 1), strings.Replace(good, `[]`, `[{"name": "a", "value": "b", "size": 1}]`, 1),
	} {
		require.Error(t, check(one, 200, typ, bad), bad)
	}
	require.Error(t, check(one, 418, typ, `{"error": "x"}`))
	require.Error(t, check(one, 404, "text/html", `{"error": "x"}`))
}
