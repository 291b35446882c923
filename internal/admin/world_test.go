package admin_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// world is an Admin on a real etcd.
type world struct {
	*admin.Admin
	*etcdtest.Etcd
	t *testing.T
}

func newWorld(t *testing.T, edits ...func(*config.Config)) *world {
	t.Helper()
	e := etcdtest.Start(t, localetcd.Options{})
	return &world{open(t, append(edits, func(c *config.Config) { c.Etcd.Endpoints = e.Endpoints() })...), e, t}
}

func open(t *testing.T, edits ...func(*config.Config)) *admin.Admin {
	t.Helper()
	c := config.Default()
	c.Etcd.DialTimeout, c.Etcd.RequestTimeout = etcdtest.Soon, etcdtest.Soon // on a busy machine
	for _, edit := range edits {
		edit(&c)
	}
	a, err := admin.Open(c, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// bubble runs a test under virtual time, with an Admin on an etcd in memory. The faults of link do
// not affect the client that writes.
func bubble(t *testing.T, test func(w *world, cluster *memetcd.Cluster, link *memetcd.Link), edits ...func(*config.Config)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		<-time.After(25 * 365 * 24 * time.Hour) // stamps of the year 2000 are implausible
		cluster := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		direct, err := cluster.Connect()
		require.NoError(t, err)
		link, err := cluster.Connect()
		require.NoError(t, err)
		a := open(t, edits...)
		a.Use(link.Client)
		test(&world{a, etcdtest.On(t, direct.Client), t}, cluster, link)
	})
}

// take writes a lock that is held by "u-" and its name, of six keys.
func (w *world) take(name string, alert, unlock time.Duration) {
	w.t.Helper()
	now := time.Now()
	w.Put(w.Lock(name, now.Add(alert), now.Add(unlock))...)
}

// in writes an instant as clients do.
func in(d time.Duration) string { return etcdtest.Stamp(time.Now().Add(d)) }

func (w *world) native(name string) {
	w.t.Helper()
	lease, err := w.Client.Grant(w.t.Context(), 600)
	require.NoError(w.t, err)
	w.Put(clientv3.OpPut(w.Etcd.Prefix+name+"/694d", "", clientv3.WithLease(lease.ID)))
}

// yes is a person who agrees.
func yes(admin.Detail, error) error { return nil }

// unasked is a person who must not be asked.
func unasked(t *testing.T) func(admin.Detail, error) error {
	return func(admin.Detail, error) error {
		require.FailNow(t, "asked")
		return nil
	}
}
