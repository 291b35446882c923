package etcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const prefix = "/mutexes/"

// guarded is one member with auth enabled, and a user ada whose password is "secret" and
// who has permissions on the prefix only.
func guarded(t *testing.T, ttl time.Duration) *etcdtest.Etcd {
	t.Helper()
	cluster := etcdtest.Start(t, localetcd.Options{AuthTokenTTL: ttl})
	cluster.Guard("ada", "secret", prefix)
	return cluster
}

// If etcd denies two calls because authentication was just enabled, both must log in: etcd
// took the user from the certificate.
func TestTwoCallsWhileAuthenticationIsTurnedOn(t *testing.T) {
	t.Parallel()
	l := &login{user: "ada"}
	l.state.Store(authDisabled)
	var both sync.WaitGroup
	both.Add(2)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			errs <- l.call(func() error {
				both.Done()
				both.Wait()
				return rpctypes.ErrGRPCPermissionDenied
			})
		}()
	}
	for range 2 {
		require.ErrorIs(t, <-errs, rpctypes.ErrGRPCUserEmpty)
	}
	require.ErrorIs(t, l.call(func() error { return nil }), rpctypes.ErrGRPCUserEmpty, "the next call is not sent")
}

func asAda(endpoint string) Options {
	o := options(endpoint)
	o.Username, o.Password = "ada", config.NewSecret("secret")
	return o
}

func passwordFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestLogin(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	for name, tt := range map[string]struct {
		edit func(*Options)
		want error
	}{
		"password":       {func(*Options) {}, nil},
		"password file":  {func(o *Options) { o.Password, o.PasswordFile = config.Secret{}, passwordFile(t, "secret\n") }, nil},
		"windows file":   {func(o *Options) { o.Password, o.PasswordFile = config.Secret{}, passwordFile(t, "secret\r\n") }, nil},
		"wrong password": {func(o *Options) { o.Password = config.NewSecret("guess") }, rpctypes.ErrAuthFailed},
		"unknown user":   {func(o *Options) { o.Username = "eve" }, rpctypes.ErrAuthFailed},
		"no user":        {func(o *Options) { o.Username, o.Password = "", config.Secret{} }, rpctypes.ErrUserEmpty},
	} {
		t.Run(name, func(t *testing.T) {
			o := asAda(cluster.Addr(0))
			tt.edit(&o)
			c := mustNew(t, o)
			_, err := c.Txn(t.Context()).Then(clientv3.OpPut(prefix+"k", "v")).Commit()
			require.ErrorIs(t, err, tt.want)
		})
	}
}

func TestFirstCallOfEveryKindLogsIn(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	for name, call := range map[string]func(context.Context, *Client) error{
		"read":   func(ctx context.Context, c *Client) error { _, err := c.Get(ctx, prefix+"k"); return err },
		"stream": func(ctx context.Context, c *Client) error { return drain(c.GetStream(ctx, prefix+"k")) },
		"delete": func(ctx context.Context, c *Client) error { _, err := c.Delete(ctx, prefix+"k"); return err },
		"alarm":  func(ctx context.Context, c *Client) error { _, err := c.AlarmList(ctx); return err },
		"lease":  func(ctx context.Context, c *Client) error { _, err := c.Grant(ctx, 5); return err },
		"status": func(ctx context.Context, c *Client) error { _, err := c.Status(ctx, c.Endpoints()[0]); return err },
		"watching": func(ctx context.Context, c *Client) error {
			return created(c.Watch(ctx, prefix, clientv3.WithCreatedNotify()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, call(t.Context(), mustNew(t, asAda(cluster.Addr(0)))))
		})
	}
}

func TestUserMayTouchThePrefixOnly(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	c := mustNew(t, asAda(cluster.Addr(0)))
	_, err := c.Get(t.Context(), "elsewhere")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
}

func TestRecoversWithUserAfterStartWithoutEtcd(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	cluster.Kill(0)
	o := asAda(cluster.Addr(0))
	o.RequestTimeout = 300 * time.Millisecond
	c := mustNew(t, o)
	_, err := c.Get(t.Context(), prefix+"k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, cluster.Restart(t.Context()))
	eventuallyPut(t, c, prefix+"k")
}

func TestExpiredTokenIsRenewed(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, time.Second)
	registry := prometheus.NewRegistry()
	o := asAda(cluster.Addr(0))
	o.Registerer = registry
	c := mustNew(t, o)
	_, err := c.Put(t.Context(), prefix+"k", "v")
	require.NoError(t, err)
	logins := started(t, registry, "Authenticate") // one, unless the token has expired already
	require.Positive(t, logins)

	// etcd looks once a second which tokens have expired, or later on a busy machine. Each use
	// prolongs a token, so that it must not be used for a while before each look.
	etcdtest.Eventually(t, func() bool {
		<-time.After(2500 * time.Millisecond)
		_, err = c.Txn(t.Context()).Then(clientv3.OpDelete(prefix + "k")).Commit()
		require.NoError(t, err)
		return started(t, registry, "Authenticate") > logins
	}, "the token has not expired, so the test proves nothing")
}

// The server keeps tokens in memory: they are invalid after its restart.
func TestForgottenTokenIsRenewed(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	c := mustNew(t, asAda(cluster.Addr(0)))
	eventuallyPut(t, c, prefix+"k")
	cluster.Kill(0)
	require.NoError(t, cluster.Restart(t.Context()))
	_, err := c.Get(t.Context(), prefix+"k")
	require.NoError(t, err)
	require.NoError(t, created(c.Watch(t.Context(), prefix, clientv3.WithCreatedNotify())))
}

func TestPasswordFileIsReadAtEachLogin(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	o := asAda(cluster.Addr(0))
	o.Password, o.PasswordFile = config.Secret{}, passwordFile(t, "secret")
	c := mustNew(t, o)
	eventuallyPut(t, c, prefix+"k")

	_, err := cluster.Client.UserChangePassword(t.Context(), "ada", "rotated") // which also revokes her tokens
	require.NoError(t, err)
	_, err = c.Get(t.Context(), prefix+"k")
	require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
	require.NoError(t, os.Remove(o.PasswordFile))
	_, err = c.Get(t.Context(), prefix+"k")
	require.ErrorContains(t, err, "etcd.password_file: open")
	require.NoError(t, os.WriteFile(o.PasswordFile, []byte("rotated\n"), 0o600))
	_, err = c.Get(t.Context(), prefix+"k")
	require.NoError(t, err)
}

func drain(stream clientv3.GetStreamChan, err error) error {
	if err != nil {
		return err
	}
	_, err = clientv3.GetStreamToGetResponse(stream)
	return err
}

func created(watch clientv3.WatchChan) error {
	response, open := <-watch
	if !open {
		return errors.New("the watch is closed")
	}
	return response.Err()
}
