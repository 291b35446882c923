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

// Tokens end many times while the daemon runs: those of etcd's simple kind when they are
// not used, the other kind after their time. The watch goes on, and so does the rest.
func TestLockedTokensEnd(t *testing.T) {
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
				// Nothing asks etcd as often as a simple token would need to live.
				c.Reaper.ProbeInterval, c.Reaper.Grace = 3*time.Second, 6*time.Second
				c.Election.TTL, c.ResyncInterval = 12*time.Second, 4*time.Second
				c.Reaper.OrphanGrace = time.Second
			})
			l.serves(d, "early")
			outlived := false
			for try := 0; try < 3 && !outlived; try++ {
				outlived = d.outlives(4)
			}
			require.True(t, outlived, d.loud())
			l.serves(d, "late")
		})
	}
}

// outlives tells whether the watch goes on while so many tokens end. On a machine that
// is too busy a token can end between the login and its first use: then it does not.
func (d *daemon) outlives(tokens float64) bool {
	d.t.Helper()
	logins := func() float64 {
		return d.metric("grpc_client_handled_total", "grpc_method", "Authenticate", "grpc_code", "OK")
	}
	before, restarts, said := logins(), d.metric("unlocker_watch_restarts_total"), d.says("etcd")
	etcdtest.Eventually(d.t, func() bool { return logins() >= before+tokens })
	return d.metric("unlocker_watch_restarts_total") == restarts && d.says("etcd") == said
}

// Any change of users or roles makes the other kind of token void.
func TestLockedUsersChange(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{AuthToken: "jwt,sign-method=ES256,ttl=1h,priv-key=" + jwtKey(t)})
	l.below(prefix)
	l.below(election)
	d := l.daemon(brisk, func(c *config.Config) {
		c.ResyncInterval = 4 * time.Second // a listing whose token has just become void is a restart; the probe is to come first
	})
	l.serves(d, "before")
	_, err := l.Client.UserAdd(l.ctx(), "somebody", "else")
	require.NoError(t, err)
	l.serves(d, "after")
	require.Zero(t, d.metric("unlocker_watch_restarts_total"), d.loud())
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
