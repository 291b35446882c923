//go:build e2e

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// On SIGTERM and SIGINT the daemon ends within five seconds with exit code 0.
func TestSignals(t *testing.T) {
	const removable = 20_000
	for name, situation := range map[string]func(*testing.T) (*daemon, *server){
		"idle": func(t *testing.T) (*daemon, *server) {
			etcd := startEtcd(t, newest)
			d := startDaemon(t, etcd.addr)
			d.awaitMetric(1, "unlocker_etcd_up")
			return d, etcd
		},
		"etcd never up": func(t *testing.T) (*daemon, *server) {
			return startDaemon(t, etcdtest.FreeAddr(t)), nil
		},
		"etcd down": func(t *testing.T) (*daemon, *server) {
			etcd := startEtcd(t, newest)
			d := startDaemon(t, etcd.addr)
			d.awaitMetric(1, "unlocker_etcd_up")
			etcd.kill()
			d.awaitMetric(0, "unlocker_etcd_up")
			return d, nil
		},
		"etcd stopped": func(t *testing.T) (*daemon, *server) {
			etcd := startEtcd(t, newest)
			d := startDaemon(t, etcd.addr)
			d.awaitMetric(1, "unlocker_etcd_up")
			etcd.suspend()
			return d, nil
		},
		"removing thousands": func(t *testing.T) (*daemon, *server) {
			etcd := startEtcd(t, newest)
			past := time.Now().Add(-time.Hour)
			etcd.putLocks("due", removable, past, past)
			d := startDaemon(t, etcd.addr, "--reaper-batch-size", "1")
			require.Eventually(t, func() bool { return d.metric("unlocker_forced_unlocks_total") > 100 }, soon, time.Millisecond)
			return d, etcd
		},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				d, etcd := situation(t)
				code, took := d.end(sig)
				require.Zero(t, code)
				require.Less(t, took, 5*time.Second)
				require.NotNil(t, d.line(api.LogStopped))
				t.Logf("ended after %s", took.Round(time.Millisecond))
				if name != "removing thousands" {
					return
				}
				left, _ := etcd.keys("")
				require.Positive(t, left, "the daemon must be stopped before it has removed all")
				require.Zero(t, left%fieldsOfALock, "no lock is removed in part")
			})
		}
	}
}
