package admin_test

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an Admin on a real etcd, and a client of the same etcd.
type world struct {
	*admin.Admin
	t       *testing.T
	cluster *localetcd.Cluster
	cli     *clientv3.Client
}

func newWorld(t *testing.T, edits ...func(*config.Config)) *world {
	return newWorldOn(t, localetcd.Options{}, edits...)
}

func newWorldOn(t *testing.T, o localetcd.Options, edits ...func(*config.Config)) *world {
	t.Helper()
	cluster := localetcd.ForTest(t, o)
	cli, err := cluster.Client()
	require.NoError(t, err)
	edits = append([]func(*config.Config){func(c *config.Config) { c.Etcd.Endpoints = cluster.Endpoints() }}, edits...)
	return &world{Admin: open(t, edits...), t: t, cluster: cluster, cli: cli}
}

func open(t *testing.T, edits ...func(*config.Config)) *admin.Admin {
	t.Helper()
	c := config.Default()
	for _, edit := range edits {
		edit(&c)
	}
	a, err := admin.Open(c, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// put writes fields of a lock, given as name, value, name, value, in one transaction.
func (w *world) put(name string, fields ...string) {
	w.t.Helper()
	var ops []clientv3.Op
	for i := 0; i < len(fields); i += 2 {
		ops = append(ops, clientv3.OpPut("/mutexes/"+name+"/"+fields[i], fields[i+1]))
	}
	_, err := w.cli.Txn(w.t.Context()).Then(ops...).Commit()
	require.NoError(w.t, err)
}

// take writes a lock that is held by "u-" and its name.
func (w *world) take(name string, alert, unlock time.Duration) {
	w.t.Helper()
	w.put(name, "uuid", "u-"+name, "hostname", "worker-1", "owner", "billing", "locked_at", in(-time.Hour),
		"alert_at", in(alert), "auto_unlock_at", in(unlock))
}

// in writes an instant as clients do.
func in(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }

// keys returns all keys under the prefix, without it.
func (w *world) keys() []string {
	w.t.Helper()
	resp, err := w.cli.Get(w.t.Context(), "/mutexes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(w.t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key[len("/mutexes/"):]))
	}
	return keys
}

func (w *world) native(name string) {
	w.t.Helper()
	lease, err := w.cli.Grant(w.t.Context(), 600)
	require.NoError(w.t, err)
	_, err = w.cli.Put(w.t.Context(), "/mutexes/"+name+"/694d", "", clientv3.WithLease(lease.ID))
	require.NoError(w.t, err)
}

// yes is a person who confirms.
func yes(admin.Detail) error { return nil }

// unasked is a person who must not be asked.
func unasked(t *testing.T) func(admin.Detail) error {
	return func(admin.Detail) error {
		require.FailNow(t, "asked")
		return nil
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
