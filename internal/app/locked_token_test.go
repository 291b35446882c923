package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// Tokens expire many times while the daemon runs: simple ones when they are not used, jwt in
// any case. The watch and everything else continue.
func TestLockedTokensExpire(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]localetcd.Options{
		"simple": {AuthTokenTTL: time.Second},
		"jwt":    {AuthToken: "jwt,sign-method=ES256,ttl=1s,priv-key=" + jwtKey(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lockDown(t, o)
			l.below(prefix)
			l.below(election)
			d := l.daemon(func(c *config.Config) {
				// No request is so frequent that it prolongs a simple token.
				c.Reaper.ProbeInterval, c.Reaper.Grace = 3*time.Second, 6*time.Second
				c.Election.TTL, c.ResyncInterval = 12*time.Second, 4*time.Second
				c.Reaper.OrphanGrace = time.Second
			})
			l.requireWorking(d, "early")
			undisturbed := false
			for attempt := 0; attempt < 3 && !undisturbed; attempt++ {
				undisturbed = d.watchSurvives(4)
			}
			require.True(t, undisturbed, d.warnings())
			l.requireWorking(d, "late")
		})
	}
}

// watchSurvives reports whether the watch continues while so many tokens expire. It may not
// on a busy machine, where a token can expire between the login and its first use.
func (d *daemon) watchSurvives(tokens float64) bool {
	d.t.Helper()
	logins := func() float64 {
		return d.metric("grpc_client_handled_total", "grpc_method", "Authenticate", "grpc_code", "OK")
	}
	before, restarts, warned := logins(), d.metric("unlocker_watch_restarts_total"), d.warned("etcd")
	etcdtest.Eventually(d.t, func() bool { return logins() >= before+tokens })
	return d.metric("unlocker_watch_restarts_total") == restarts && d.warned("etcd") == warned
}

// Any change of users or roles revokes all jwt tokens.
func TestLockedUsersChange(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{AuthToken: "jwt,sign-method=ES256,ttl=1h,priv-key=" + jwtKey(t)})
	l.below(prefix)
	l.below(election)
	d := l.daemon(fast, func(c *config.Config) {
		c.Election.TTL = 10 * time.Second
		c.ResyncInterval = 8 * time.Second
	})
	l.requireWorking(d, "before")
	// A listing whose token has just become void is a restart; the probe is to come first.
	resynced := d.metric("unlocker_last_resync_timestamp_seconds")
	etcdtest.Eventually(t, func() bool { return d.metric("unlocker_last_resync_timestamp_seconds") > resynced })
	_, err := l.Client.UserAdd(l.ctx(), "someone", "else")
	require.NoError(t, err)
	l.requireWorking(d, "after")
	require.Zero(t, d.metric("unlocker_watch_restarts_total"), d.warnings())
}

func jwtKey(t *testing.T) (path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "jwt.pem")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	return path
}
