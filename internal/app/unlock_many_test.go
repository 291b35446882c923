package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// postMany sends a request to unlock many, and returns the lines of the answer.
func (d *daemon) postMany(what api.UnlockMany, edit func(*http.Request)) (status int, lines []string) {
	d.t.Helper()
	body, err := json.Marshal(what)
	require.NoError(d.t, err)
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.webURL()+"/api/v1/unlock", bytes.NewReader(body))
	require.NoError(d.t, err)
	req.Header.Set("Content-Type", "application/json")
	edit(req)
	resp, err := d.http.Do(req)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	return resp.StatusCode, strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (d *daemon) selects(what api.UnlockMany) (s api.Selection) {
	d.t.Helper()
	status, lines := d.postMany(what, as("ada"))
	require.Equal(d.t, http.StatusOK, status, lines)
	require.NoError(d.t, json.Unmarshal([]byte(strings.Join(lines, "")), &s))
	return s
}

// What was shown is removed, and no request can be made to remove anything else: not with the digest of an older list, not
// once more, not where the digest was for another question. The losing client says who removed its lock and why.
func TestUnlockManyByTheAPI(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), byHeader)
	d.awaitReady()
	client, err := mutex.New(e.Client)
	require.NoError(t, err)
	held, err := client.Lock(t.Context(), "n/held")
	require.NoError(t, err)
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("n/dead", later, later)...)
	e.Put(e.Lock("other", later, later)...)
	d.awaitMetric(3, "unlocker_locks", "state", "held")

	what := api.UnlockMany{Match: "n/*", Reason: "OPS-1"}
	shown := d.selects(what)
	require.Len(t, shown.Locks, 2)
	require.Equal(t, "n/dead", shown.Locks[0].Name)
	refused := func(what api.UnlockMany) {
		t.Helper()
		status, lines := d.postMany(what, as("ada"))
		require.Equal(t, http.StatusConflict, status, lines)
		require.Contains(t, lines[1], "nothing was removed: the digest is of other locks")
	}
	what.Digest = shown.Digest
	refused(api.UnlockMany{Match: "**", Reason: "OPS-1", Digest: shown.Digest})
	refused(api.UnlockMany{Match: "n/*", Silent: true, Reason: "OPS-1", Digest: shown.Digest})
	e.Put(e.Lock("n/new", later, later)...)
	d.awaitMetric(4, "unlocker_locks", "state", "held")
	refused(what)
	e.Put(clientv3.OpDelete(prefix+"n/new/", clientv3.WithPrefix()))
	d.awaitMetric(3, "unlocker_locks", "state", "held")
	e.Put(clientv3.OpDelete(prefix+"n/dead/", clientv3.WithPrefix()))
	e.Put(e.Lock("n/dead", later, later)...) // taken again, under the same uuid
	etcdtest.Eventually(t, func() bool {
		now := d.selects(api.UnlockMany{Match: "n/*"})
		return len(now.Locks) == 2 && now.Digest != shown.Digest
	})
	refused(what)
	require.Empty(t, auditRecords(t, e))

	what.Digest = d.selects(api.UnlockMany{Match: "n/*"}).Digest
	status, lines := d.postMany(what, as("ada"))
	require.Equal(t, http.StatusOK, status, lines)
	require.Len(t, lines, 3)
	require.Equal(t, `{"total":2,"removed":2,"refused":0,"unknown":0,"not_tried":0}`, lines[2])
	d.awaitMetric(1, "unlocker_locks", "state", "held")
	refused(what)
	require.Len(t, e.Keys(""), fieldsOfALock, "the other one")
	host, err := os.Hostname()
	require.NoError(t, err)
	records := auditRecords(t, e)
	require.Len(t, records, 2)
	for _, r := range records {
		require.Equal(t, []string{"ada@" + host, "OPS-1"}, []string{r.Who, r.Reason})
	}
	d.awaitMetric(2, "unlocker_forced_unlocks_total", "trigger", "manual")
	require.Len(t, d.log.Lines(api.LogUnlockRequested), 2)
	require.Equal(t, "OPS-1", d.forced("n/held")[0].Reason)

	<-held.Context(t.Context()).Done()
	var lost *mutex.LostError
	require.ErrorAs(t, held.Held(), &lost)
	require.NotNil(t, lost.Removal(t.Context()))
	require.ErrorContains(t, lost, fmt.Sprintf(`by "ada@%s" (trigger "manual"): "OPS-1"`, host))
}
