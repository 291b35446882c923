package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// A start at which nothing is wrong logs nothing above Info, until the daemon has settled.
func TestCleanStartIsQuiet(t *testing.T) {
	t.Parallel()
	guarded := lockDown(t, localetcd.Options{})
	guarded.below(prefix)
	guarded.below(election)
	plain := etcdtest.Start(t, localetcd.Options{})
	for name, tt := range map[string]struct {
		etcd    *etcdtest.Etcd
		edit    func(*config.Config)
		dryRuns int
	}{
		"first replica":  {plain, func(*config.Config) {}, 0},
		"second replica": {plain, func(*config.Config) {}, 0},
		"dry-run":        {plain, func(c *config.Config) { c.Reaper.Mode = "dry-run" }, 1},
		"off":            {plain, func(c *config.Config) { c.Reaper.Mode = "off" }, 0},
		"with a user":    {guarded.Etcd, asUser, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDaemon(t, tt.etcd.Endpoints(), tt.edit, func(c *config.Config) {
				c.Reaper.ProbeInterval, c.Reaper.Grace, c.Reaper.Freshness = 20*time.Second, time.Minute, time.Minute // a stall of the machine is none of etcd
			})
			d.awaitReady()
			for _, hold := range []string{"starting", "disconnected"} {
				d.awaitMetric(0, "unlocker_reaper_hold", "reason", hold)
			}
			for _, line := range d.log.Lines("") {
				require.Contains(t, []any{"DEBUG", "INFO"}, line["level"], line)
			}
			require.Len(t, d.log.Lines(api.LogDryRun), tt.dryRuns)
		})
	}
}

// A connection that cannot be made is one warning of each part that needs etcd, with the key
// to change; /readyz has the same words.
func TestFailedConnectionIsNamed(t *testing.T) {
	t.Parallel()
	const advice = "etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, []string{e.Addr(0)}, func(c *config.Config) {
		c.Etcd.TLS.ServerName, c.Etcd.RequestTimeout = "etcd.example", time.Second
	})
	d.warnsOnce(api.LogWatchFailed, "reason=unavailable", "error=no connection: authentication handshake failed: ", advice)
	d.warnsOnce(api.LogElectionFailed, "error=no connection: authentication handshake failed: ", advice)
	_, body := d.get("/readyz")
	require.Contains(t, body, advice)
}
