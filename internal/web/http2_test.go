package web

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// leisurely is an unlocker for which etcd takes longer than a client may take to read.
type leisurely struct{ *unlocker }

func (leisurely) UnlockMany(ctx context.Context, _ api.UnlockMany, _ string, report func(api.Unlocked)) error {
	select {
	case <-time.After(time.Second / 2):
		report(api.Unlocked{Total: 1, Removed: 1})
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HTTP/2 resets a stream at its deadline for writing, also where nothing is written: that would stop the removals.
func TestUnlockManyOutlivesTheWriteTimeout(t *testing.T) {
	t.Parallel()
	h, err := New(Options{Source: &source{}, Events: stoppedHub(t), Unlocker: leisurely{&unlocker{}}, Logger: (&etcdtest.Log{}).Logger()})
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2, server.Config.WriteTimeout = true, time.Second/10
	server.StartTLS()
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/api/v1/unlock", strings.NewReader(`{"match": "*", "digest": "d", "reason": "OPS-1"}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := server.Client().Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, 2, resp.ProtoMajor)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), `"removed":1`)
}
