package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// unlocker notes what it was asked to remove.
type unlocker struct {
	userErr, err error
	asked        []string
	// selected is what a request selects; each of its locks is removed.
	selected api.Selection
}

func (u *unlocker) User(*http.Request) (string, error) { return "ada@host", u.userErr }

func (u *unlocker) Unlock(_ context.Context, name string, what api.Unlock, who string) (api.Forced, error) {
	u.asked = append(u.asked, strings.Join([]string{name, what.UUID, what.Reason, who}, "|"))
	return api.Forced{Name: name, Who: who, Fields: []api.Field{}}, u.err
}

func (u *unlocker) Ask(_ context.Context, name, who string) error {
	u.asked = append(u.asked, name+"|"+who)
	return u.err
}

func (u *unlocker) Pause(_ context.Context, what api.PauseRequest, who string) (api.Pause, error) {
	u.asked = append(u.asked, strings.Join([]string{what.Match, what.For, what.Reason, who}, "|"))
	return api.Pause{Match: what.Match}, u.err
}

func (u *unlocker) Resume(_ context.Context, match string) (api.Pause, error) {
	u.asked = append(u.asked, "resume "+match)
	return api.Pause{Match: match, By: "bob"}, u.err
}

func (u *unlocker) Select(_ context.Context, what api.UnlockMany) (api.Selection, error) {
	u.asked = append(u.asked, fmt.Sprintf("select %s %t", what.Match, what.Silent))
	return u.selected, u.err
}

func (u *unlocker) UnlockMany(ctx context.Context, what api.UnlockMany, who string, report func(api.Unlocked)) error {
	u.asked = append(u.asked, fmt.Sprintf("many %s %t %s %s %s", what.Match, what.Silent, what.Reason, what.Digest, who))
	for i, l := range u.selected.Locks {
		if ctx.Err() == nil {
			report(api.Unlocked{Name: l.Name, UUID: l.UUID, Outcome: api.OutcomeRefused, Error: "no\x1b", Total: 2, Refused: i + 1})
		}
	}
	if u.err == nil {
		report(api.Unlocked{Total: 2, Refused: 2})
	}
	return u.err
}

// post sends a request to unlock with a changed header or body.
func post(t *testing.T, u *unlocker, path, body string, header ...string) (status int, answer, logged string) {
	t.Helper()
	log := &etcdtest.Log{}
	h, err := New(Options{Source: &source{}, Events: stoppedHub(t), Unlocker: u, PathPrefix: "/p", Logger: log.Logger()})
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodPost, "http://unlocker.example"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	for line := range strings.Lines(w.Body.String()) {
		require.True(t, w.Header().Get("Content-Type") != "application/x-ndjson" || json.Valid([]byte(line)), line)
	}
	require.True(t, w.Header().Get("Content-Type") == "application/x-ndjson" || json.Valid(w.Body.Bytes()), w.Body.String())
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
	return w.Code, w.Body.String(), log.String()
}

func TestUnlock(t *testing.T) {
	u := &unlocker{}
	status, body, log := post(t, u, "/p/api/v1/locks/a/b/unlock", `{"uuid": "u", "reason": "OPS-1"}`)
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, []string{"a/b|u|OPS-1|ada@host"}, u.asked)
	require.Contains(t, body, `"who": "ada@host"`)
	for _, word := range []string{api.LogUnlockRequested, `"who":"ada@host"`, `"reason":"OPS-1"`, `"outcome":"removed"`, `"lock":"a/b"`} {
		require.Contains(t, log, word)
	}
}

// Without a digest nothing is removed. With one there is a line for each lock, also in the log, and one with the counts.
func TestUnlockMany(t *testing.T) {
	const path = "/p/api/v1/unlock"
	u := &unlocker{selected: api.Selection{Locks: []api.Lock{{Name: "n/a", UUID: "u"}, {Name: "n/b", UUID: "v"}}, Digest: "d"}}
	status, body, log := post(t, u, path, `{"match": "n/*", "silent": true}`)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, `"digest": "d"`)
	require.NotContains(t, log, api.LogUnlockRequested)
	status, body, log = post(t, u, path, `{"match": "n/*", "digest": "d", "reason": "OPS-1"}`)
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, []string{"select n/* true", "many n/* false OPS-1 d ada@host"}, u.asked)
	lines := strings.Split(strings.TrimSpace(body), "\n")
	require.Len(t, lines, 3)
	require.JSONEq(t, `{"name":"n/a","uuid":"u","outcome":"refused","error":"no\u001b","total":2,"removed":0,"refused":1,"unknown":0,"not_tried":0}`, lines[0])
	require.JSONEq(t, `{"total":2,"removed":0,"refused":2,"unknown":0,"not_tried":0}`, lines[2])
	require.Equal(t, 2, strings.Count(log, api.LogUnlockRequested))
	for _, word := range []string{`"who":"ada@host"`, `"reason":"OPS-1"`, `"outcome":"refused: no`, `"lock":"n/a"`, `"uuid":"v"`} {
		require.Contains(t, log, word)
	}
}

func TestUnlockManyRefuses(t *testing.T) {
	const path, body = "/p/api/v1/unlock", `{"match": "n/*", "digest": "d", "reason": "OPS-1"}`
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
		header []string
	}{
		"no reason":        {`{"match": "n/*", "digest": "d", "reason": " "}`, 400, "reason: required with a digest", nil},
		"two patterns":     {`{"match": "n/*", "match": "**"}`, 400, `repeated field \"match\": want digest, match, reason, silent`, nil},
		"silent is a word": {`{"match": "n/*", "silent": "true"}`, 400, "silent: must be true or false", nil},
		"force":            {`{"match": "n/*", "force": true}`, 400, `field \"force\"`, nil},
		"a long reason":    {`{"match": "n/*", "reason": "` + strings.Repeat("x", maxReason+1) + `"}`, 400, "at most 512 bytes", nil},
		"another site":     {body, 403, "same origin", []string{"Sec-Fetch-Site", "cross-site"}},
		"another origin":   {body, 403, "same origin", []string{"Origin", "https://evil.example"}},
		"a form":           {body, 415, "application/json", []string{"Content-Type", "text/plain"}},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unlocker{}
			status, answer, log := post(t, u, path, c.body, c.header...)
			require.Equal(t, c.status, status, answer)
			require.Contains(t, answer, c.want)
			require.Empty(t, u.asked)
			require.NotContains(t, log, api.LogUnlockRequested)
		})
	}
	u := &unlocker{userErr: errors.New("no user")}
	status, _, _ := post(t, u, path, body)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Empty(t, u.asked)
	u = &unlocker{err: failure(http.StatusConflict, "other locks")}
	status, answer, _ := post(t, u, path, body)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, answer, "other locks")
}

// The last segment of a POST is the verb, whatever the lock is called.
func TestUnlockOfNamesThatEndLikeTheVerb(t *testing.T) {
	for path, want := range map[string]string{
		"x/unlock":          "x",
		"x/unlock/unlock":   "x/unlock",
		"x%2Funlock/unlock": "x/unlock",
		"unlock/unlock":     "unlock",
		"%2E%2E/x/unlock":   "../x",
		"a%20b%3F/unlock":   "a b?",
	} {
		u := &unlocker{}
		status, body, _ := post(t, u, "/p/api/v1/locks/"+path, `{"uuid": "u"}`)
		require.Equal(t, http.StatusOK, status, body)
		require.Equal(t, []string{want + "|u||ada@host"}, u.asked, path)
	}
	for path, want := range map[string]int{
		"unlock":           http.StatusMethodNotAllowed,
		"x%2Funlock":       http.StatusMethodNotAllowed,
		"x/%75nlock":       http.StatusMethodNotAllowed,
		"x/unlock/":        http.StatusMethodNotAllowed,
		"/unlock":          http.StatusBadRequest,
		"x//unlock":        http.StatusBadRequest,
		"x%2F/unlock":      http.StatusBadRequest,
		"%FF/unlock":       http.StatusBadRequest,
		"x/unlock?force=1": http.StatusBadRequest,
	} {
		u := &unlocker{}
		status, body, _ := post(t, u, "/p/api/v1/locks/"+path, `{"uuid": "u"}`)
		require.Equal(t, want, status, path+body)
		require.Empty(t, u.asked)
	}
	s := &source{}
	server, _ := newServer(t, s, "")
	resp, _ := get(t, http.MethodGet, server.URL+"/api/v1/locks/x/unlock")
	require.Equal(t, http.StatusOK, resp.status)
	require.Equal(t, "x/unlock", s.name)
}

// A question needs what an unlock needs, but no body.
func TestAsk(t *testing.T) {
	const sentence = "its process does not answer within 5s"
	for path, c := range map[string]struct {
		u      unlocker
		header []string
		status int
		asked  []string
		want   string
	}{
		"a/b/ask":     {status: 200, asked: []string{"a/b|ada@host"}, want: `"name": `},
		"ask/ask":     {status: 200, asked: []string{"ask|ada@host"}},
		"a/ask?x=1":   {status: 400},
		"dead/ask":    {u: unlocker{err: failure(http.StatusGatewayTimeout, sentence)}, status: 504, asked: []string{"dead|ada@host"}, want: sentence},
		"none/ask":    {u: unlocker{err: ErrNoLock}, status: 404, asked: []string{"none|ada@host"}},
		"foreign/ask": {header: []string{"Sec-Fetch-Site", "cross-site"}, status: 403, want: "may ask"},
		"nobody/ask":  {u: unlocker{userErr: errors.New("no user")}, status: 401},
	} {
		t.Run(path, func(t *testing.T) {
			status, body, _ := post(t, &c.u, "/p/api/v1/locks/"+path, "", c.header...)
			require.Equal(t, c.status, status, body)
			require.Equal(t, c.asked, c.u.asked)
			require.Contains(t, body, c.want)
		})
	}
}

// Nothing is removed that could have been meant otherwise.
func TestUnlockRefusesBodies(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"empty":             {``, 400, "must be a JSON object"},
		"array":             {`[{"uuid": "u"}]`, 400, "must be a JSON object"},
		"string":            {`"u"`, 400, "must be a JSON object"},
		"no uuid":           {`{"reason": "r"}`, 400, "uuid: required"},
		"empty uuid":        {`{"uuid": ""}`, 400, "uuid: required"},
		"null":              {`{"uuid": null}`, 400, "uuid: must be a string"},
		"number":            {`{"uuid": 1}`, 400, "uuid: must be a string"},
		"list of uuids":     {`{"uuid": ["u", "v"]}`, 400, "uuid: must be a string"},
		"two uuids":         {`{"uuid": "u", "uuid": "v"}`, 400, `repeated field \"uuid\"`},
		"another case":      {`{"uuid": "u", "UUID": "v"}`, 400, `field \"UUID\"`},
		"unknown field":     {`{"uuid": "u", "force": true}`, 400, `field \"force\"`},
		"two objects":       {`{"uuid": "u"} {"uuid": "v"}`, 400, "one JSON object"},
		"rubbish behind":    {`{"uuid": "u"}x`, 400, "one JSON object"},
		"not closed":        {`{"uuid": "u"`, 400, "not JSON"},
		"no colon":          {`{"uuid" "u"}`, 400, "uuid: must be a string"},
		"not UTF-8":         {"{\"uuid\": \"\xff\"}", 400, "not UTF-8"},
		"reason too long":   {`{"uuid": "u", "reason": "` + strings.Repeat("x", maxReason+1) + `"}`, 400, "reason: must have at most 512 bytes"},
		"body too long":     {`{"uuid": "u"}` + strings.Repeat(" ", maxBody), 413, "at most 4096 bytes"},
		"megabytes":         {`{"uuid": "` + strings.Repeat("u", 1<<22) + `"}`, 413, "at most 4096 bytes"},
		"escaped duplicate": {`{"uuid": "u", "uu\u0069d": "v"}`, 400, `repeated field \"uuid\"`},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unlocker{}
			status, body, _ := post(t, u, "/p/api/v1/locks/a/unlock", c.body)
			require.Equal(t, c.status, status, body)
			require.Contains(t, body, c.want)
			require.Empty(t, u.asked)
		})
	}
}

// A page of another origin cannot make a browser unlock, whatever the browser sends along.
func TestUnlockRefusesOtherOriginsAndTypes(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		status int
	}{
		"curl":                            {nil, 200},
		"own page":                        {[]string{"Sec-Fetch-Site", "same-origin", "Origin", "https://unlocker.example"}, 200},
		"own page, plain HTTP":            {[]string{"Origin", "http://unlocker.example"}, 200},
		"charset":                         {[]string{"Content-Type", "application/json; charset=utf-8"}, 200},
		"proxy that changes Host":         {[]string{"Sec-Fetch-Site", "same-origin", "Origin", "https://locks.example"}, 200},
		"same, plain HTTP":                {[]string{"Origin", "http://locks.example"}, 403},
		"another page":                    {[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		"another host of the site":        {[]string{"Sec-Fetch-Site", "same-site"}, 403},
		"another page, plain HTTP":        {[]string{"Origin", "http://evil.example"}, 403},
		"sandboxed frame":                 {[]string{"Origin", "null"}, 403},
		"a form":                          {[]string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		"a form that looks like JSON":     {[]string{"Content-Type", "text/plain"}, 415},
		"no type":                         {[]string{"Content-Type", ""}, 415},
		"a type that begins like the one": {[]string{"Content-Type", "application/json-patch+json"}, 415},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unlocker{}
			status, body, _ := post(t, u, "/p/api/v1/locks/a/unlock", `{"uuid": "u"}`, c.header...)
			require.Equal(t, c.status, status, body)
			require.Equal(t, c.status == 200, len(u.asked) == 1)
		})
	}
}

func TestUnlockFails(t *testing.T) {
	for name, c := range map[string]struct {
		u      unlocker
		status int
		logged bool
	}{
		"no user":     {unlocker{userErr: errors.New("no header")}, 401, false},
		"gone":        {unlocker{err: ErrNoLock}, 404, true},
		"other uuid":  {unlocker{err: &Error{409, errors.New("another uuid")}}, 409, true},
		"no answer":   {unlocker{err: context.DeadlineExceeded}, 504, true},
		"lost answer": {unlocker{err: &Error{504, errors.New("broken connection")}}, 504, true},
		"etcd is ill": {unlocker{err: errors.New("no space")}, 502, true},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, log := post(t, &c.u, "/p/api/v1/locks/a/unlock", `{"uuid": "u"}`)
			require.Equal(t, c.status, status, body)
			require.Equal(t, c.logged, strings.Contains(log, api.LogUnlockRequested), log)
			require.NotContains(t, log, `"outcome":"removed"`)
		})
	}
}

// stuck is a source whose reads of etcd do not end, and a body that does not come.
type stuck struct {
	*source
	reads chan struct{}
	body  chan struct{}
}

func (s stuck) Lock(ctx context.Context, _ string) (api.LockDetail, error) {
	s.reads <- struct{}{}
	<-ctx.Done()
	return api.LockDetail{}, ctx.Err()
}

func (s stuck) Read([]byte) (int, error) {
	s.reads <- struct{}{}
	<-s.body
	return 0, io.ErrUnexpectedEOF
}

// Neither those who read locks, while etcd is slow, nor a user who does not send the body, keep others
// from unlocking.
func TestUnlockBesideSlowRequests(t *testing.T) {
	s := stuck{&source{}, make(chan struct{}), make(chan struct{})}
	u := &unlocker{}
	h, err := New(Options{Source: s, Events: stoppedHub(t), Unlocker: u, Logger: (&etcdtest.Log{}).Logger()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	for range maxInFlight {
		slow.Go(func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/locks/x", nil))
		})
	}
	unlock := func(body io.Reader) int {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/api/v1/locks/x/unlock", body)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	slow.Go(func() { unlock(s) })
	for range 3 { // two reads, and the body
		<-s.reads
	}
	require.Equal(t, http.StatusOK, unlock(strings.NewReader(`{"uuid": "u"}`)))
	cancel()
	close(s.body)
	go func() {
		for range s.reads { // those that waited for their turn
		}
	}()
	slow.Wait()
	close(s.reads)
	require.Len(t, u.asked, 1)
}
