package app_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// stalls measures, until the function that it returns is called, for how long the machine did not run
// this process: what is promised to take at most so long may take longer by that.
func stalls() (stalled func() time.Duration) {
	const every, usual = 5 * time.Millisecond, 20 * time.Millisecond
	ended, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		var all time.Duration
		for last := time.Now(); ; {
			select {
			case <-time.After(every):
			case <-ended:
				sum <- all
				return
			}
			if gap := time.Since(last); gap > usual {
				all += gap
			}
			last = time.Now()
		}
	}()
	return func() time.Duration {
		close(ended)
		return <-sum
	}
}

// requireStops stops the daemon, which must end in time, and then the others. No goroutine
// may remain.
func requireStops(t *testing.T, d *daemon, before goleak.Option, others ...func()) {
	t.Helper()
	addr := d.OpsAddr()
	stalled := stalls()
	took := d.stop()
	require.Less(t, took-stalled(), promised)
	_, err := net.Dial("tcp", addr)
	require.Error(t, err, "the listener is still open")
	for _, stop := range others {
		stop()
	}
	goleak.VerifyNone(t, before)
}

func TestStopConnected(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	requireStops(t, d, before, func() { require.NoError(t, e.Close()) })
}

func TestStopWithoutEtcd(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	require.NoError(t, e.Close())
	d := startDaemon(t, e.Endpoints())
	requireStops(t, d, before)
}

func TestStopWhileRemoving(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	putLocks(e, 5000, time.Now().Add(-time.Minute))
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Reaper.BatchSize = 1 })
	etcdtest.Eventually(t, func() bool { return d.metric("unlocker_forced_unlocks_total") > 10 })
	d.stop()
	left := len(e.Keys(""))
	require.NotZero(t, left, "the daemon must be stopped before it has removed all")
	require.Zero(t, left%fieldsOfALock, "no lock is removed in part")
	removed, announced := d.names(api.LogRemoved), d.names(api.LogRemoving)
	require.Len(t, announced, len(removed), "each outcome is logged")
	require.Equal(t, (5000-len(removed))*fieldsOfALock, left)
	requireStops(t, d, before, func() { require.NoError(t, e.Close()) })
}

// Removals are in flight, and etcd no longer answers.
func TestStopBlackholed(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	putLocks(e, 2000, time.Now().Add(-time.Minute))
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) { c.Reaper.BatchSize = 1 })
	etcdtest.Eventually(t, func() bool { return d.metric("unlocker_forced_unlocks_total") > 10 })
	proxy.Blackhole()
	require.NotEmpty(t, e.Keys(""))
	requireStops(t, d, before, proxy.Close, func() { require.NoError(t, e.Close()) })
}

// The reaper waits for its last transaction, and then the elector for its resignation. Run
// does not fail if neither is answered.
func TestRunEndsBlackholed(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	putLocks(e, 2000, time.Now().Add(-time.Minute))
	d := newDaemon(t, []string{proxy.Addr()}, func(c *config.Config) { c.Reaper.BatchSize = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	etcdtest.Eventually(t, func() bool {
		return d.metric("unlocker_forced_unlocks_total") > 10 && d.metric("unlocker_leader") == 1
	})
	proxy.Blackhole()
	start, stalled := time.Now(), stalls()
	cancel()
	err, took, stall := <-ended, time.Since(start), stalled()
	require.Less(t, took-stall, promised)
	if stall < 500*time.Millisecond { // by which the limit of Run exceeds what it needs
		require.NoError(t, err)
	}
	requireStops(t, d, before, proxy.Close, func() { require.NoError(t, e.Close()) })
}

// etcd accepts connections, but never answers.
func TestStopBlackholedFromTheStart(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	proxy.Blackhole()
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) { c.Etcd.RequestTimeout = time.Second })
	etcdtest.Eventually(t, func() bool { return d.metric("unlocker_watch_restarts_total") > 0 })
	status, body := d.get("/readyz")
	require.Equal(t, 503, status)
	require.Contains(t, body, "no answer from etcd")
	requireStops(t, d, before, proxy.Close, func() { require.NoError(t, e.Close()) })
}

func TestRunEndsWithItsContext(t *testing.T) {
	before := goleak.IgnoreCurrent()
	a, err := app.New(newConfig([]string{"127.0.0.1:1"}), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, a.Run(ctx))
	goleak.VerifyNone(t, before)
}

// The error of New names the wrong key, and New leaves nothing open.
func TestNewFailsCleanly(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(bad, []byte("no: such key\n"), 0o600))
	for name, c := range map[string]struct {
		edit func(*config.Config)
		want string
	}{
		"port taken":          {func(c *config.Config) { c.Ops.Listen = taken.Addr().String() }, "ops.listen: listen tcp"},
		"web config absent":   {func(c *config.Config) { c.Ops.WebConfigFile = dir + "/absent" }, "ops.web_config_file: open"},
		"web config bad":      {func(c *config.Config) { c.Ops.WebConfigFile = bad }, "ops.web_config_file: yaml"},
		"web port taken":      {func(c *config.Config) { c.Web.Listen = taken.Addr().String() }, "web.listen: listen tcp"},
		"web's config absent": {func(c *config.Config) { c.Web.WebConfigFile = dir + "/absent" }, "web.web_config_file: open"},
		"ca absent":           {func(c *config.Config) { c.Etcd.TLS.CAFile = dir + "/absent" }, "etcd.tls.ca_file: open"},
		"ca bad":              {func(c *config.Config) { c.Etcd.TLS.CAFile = bad }, "etcd.tls.ca_file: no certificate in"},
		"certificate bad":     {func(c *config.Config) { c.Etcd.TLS.CertFile, c.Etcd.TLS.KeyFile = bad, bad }, "etcd.tls.cert_file"},
		"password unreadable": {func(c *config.Config) { c.Etcd.Username, c.Etcd.PasswordFile = "u", dir+"/absent" }, "etcd.password_file: open"},
		"prefix bad":          {func(c *config.Config) { c.Prefix = "mutexes" }, "prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			free, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			require.NoError(t, free.Close())
			config := newConfig([]string{"127.0.0.1:1"})
			config.Ops.Listen, config.Web.Listen = free.Addr().String(), "127.0.0.1:0"
			c.edit(&config)
			_, err = app.New(config, slog.New(slog.DiscardHandler))
			require.ErrorContains(t, err, c.want)
			goleak.VerifyNone(t, before)
			again, err := net.Listen("tcp", free.Addr().String())
			require.NoError(t, err, "the listener was left open")
			require.NoError(t, again.Close())
		})
	}
}
