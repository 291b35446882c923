package main

import (
	"bufio"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// TestGatewayAnswersAsDocumented executes the examples of docs/protocol.md over HTTP.
func TestGatewayAnswersAsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	txn := regexp.MustCompile(`(?s)POST /v3/kv/txn\n(.*?)\n\n`).FindSubmatch(page)
	require.NotNil(t, txn)
	const key = `"key":"L211dGV4ZXMvZGVtby91dWlk"`
	watch := func(from string) string {
		return `{"createRequest":{` + key + `,"startRevision":"` + from + `","filters":["NOPUT"]}}`
	}
	e := etcdtest.Start(t, localetcd.Options{})
	post := func(path, body string) *bufio.Reader {
		r, err := http.Post("http://"+e.Addr(0)+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Body.Close()) })
		return bufio.NewReader(r.Body)
	}
	line := func(r *bufio.Reader) string {
		text, err := r.ReadString('\n')
		require.NotEmpty(t, text, err)
		return strings.ReplaceAll(text, " ", "") // the gateway sets spaces at random
	}
	require.Contains(t, line(post("/v3/kv/txn", string(txn[1]))), `"succeeded":true`)
	failed := line(post("/v3/kv/txn", string(txn[1])))
	require.NotContains(t, failed, "succeeded")
	require.Contains(t, failed, `"response_range":{"header":`)
	require.Contains(t, failed, `"kvs":[{`+key+`,"create_revision":"2","mod_revision":"2","version":"1","value":"dTE="}],"count":"1"`)

	events := post("/v3/watch", watch("2"))
	require.Contains(t, line(events), `"created":true`)
	deleted, err := e.Client.Delete(t.Context(), "/mutexes/demo/uuid")
	require.NoError(t, err)
	require.Contains(t, line(events), `"events":[{"type":"DELETE","kv":{`+key+`,"mod_revision":"3"}}]`)
	_, err = e.Client.Compact(t.Context(), deleted.Header.Revision)
	require.NoError(t, err)
	canceled := post("/v3/watch", watch("2"))
	require.Contains(t, line(canceled), `"created":true`)
	require.Contains(t, line(canceled), `"canceled":true,"compact_revision":"3"`)

	require.Contains(t, line(post("/v3/kv/range", `{"key":""}`)), `"code":3`)
	e.Guard("worker", "secret", "/mutexes/")
	require.Contains(t, line(post("/v3/auth/authenticate", `{"name":"worker","password":"secret"}`)), `"token":"`)
	require.Contains(t, line(post("/v3/kv/txn", string(txn[1]))), `usernameisempty`)
}
