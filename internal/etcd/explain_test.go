package etcd

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// The error of each kind of request names the user and the permission.
func TestDeniedRequestsNameThePermission(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	c := mustNew(t, asAda(cluster.Addr(0)))
	for name, call := range map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, err := c.Get(ctx, "/locks/"); return err },
		"list": func(ctx context.Context) error { return drain(c.GetStream(ctx, "/locks/", clientv3.WithPrefix())) },
		"put":  func(ctx context.Context) error { _, err := c.Put(ctx, "/locks/a", "v"); return err },
		"transaction": func(ctx context.Context) error {
			_, err := c.Txn(ctx).Then(clientv3.OpDelete("/locks/a"), clientv3.OpGet("/locks/c")).Commit()
			return err
		},
		"watch": func(ctx context.Context) error {
			r := <-c.Watch(ctx, "/locks/", clientv3.WithPrefix())
			return r.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.Explain(call(t.Context()), ReadWrite, "/locks/")
			require.ErrorContains(t, err, "etcdserver: permission denied")
			require.ErrorContains(t, err, `: user "ada" needs readwrite on [/locks/, /locks0) (prefix /locks/)`)
			if name != "watch" { // its error has no type
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			}
		})
	}
}

func TestRefusedUsersLearnWhatToChange(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	secret := passwordFile(t, "guess")
	for name, tt := range map[string]struct {
		edit func(*Options)
		want string
	}{
		"wrong password": {func(o *Options) { o.Password = config.NewSecret("guess") },
			`etcdserver: authentication failed, invalid user ID or password: etcd.username "ada" with the password of etcd.password`},
		"wrong password in the file": {func(o *Options) { o.Password, o.PasswordFile = config.Secret{}, secret },
			`etcdserver: authentication failed, invalid user ID or password: etcd.username "ada" with the password of etcd.password_file ` + secret},
		"unknown user": {func(o *Options) { o.Username = "eve" },
			`etcdserver: authentication failed, invalid user ID or password: etcd.username "eve" with the password of etcd.password`},
		"no user": {func(o *Options) { o.Username, o.Password = "", config.Secret{} },
			`etcdserver: user name is empty: etcd has authentication on: set etcd.username, or etcd.tls.cert_file to a certificate whose common name is a user`},
	} {
		t.Run(name, func(t *testing.T) {
			o := asAda(cluster.Addr(0))
			tt.edit(&o)
			c := mustNew(t, o)
			for what, call := range map[string]func(context.Context) error{
				"get":   func(ctx context.Context) error { _, err := c.Get(ctx, "k"); return err },
				"txn":   func(ctx context.Context) error { _, err := c.Txn(ctx).Then(clientv3.OpGet("k")).Commit(); return err },
				"alarm": func(ctx context.Context) error { _, err := c.AlarmList(ctx); return err },
				"lease": func(ctx context.Context) error { _, err := c.Grant(ctx, 10); return err },
			} {
				err := c.Explain(call(t.Context()), ReadWrite, prefix)
				if what == "lease" && tt.want[:20] == "etcdserver: user nam" && err == nil {
					continue // etcd before 3.7 grants one to any user
				}
				require.EqualError(t, err, tt.want, what)
			}
		})
	}
}

// etcd denies everything to the user of a certificate if there is no such user.
func TestDeniedUserOfACertificateIsNamed(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	admin := s.admin(t, s.ca.issue(t, s.dir, "root"))
	addUser(t, admin, "root", "", "root")
	_, err := admin.AuthEnable(t.Context())
	require.NoError(t, err)
	c := mustNew(t, s.options(s.cluster.Addr(0), s.ca.issue(t, s.dir, "nobody")))
	_, err = c.Get(t.Context(), "k")
	require.EqualError(t, c.Explain(err, Read, prefix), `etcdserver: permission denied: user "nobody" (the client certificate's common name, if there is such a user) needs read on [/mutexes/, /mutexes0) (prefix /mutexes/)`)
}

func TestOtherErrorsStay(t *testing.T) {
	t.Parallel()
	c := mustNew(t, options("127.0.0.1:1"))
	for _, err := range []error{nil, context.Canceled, errors.New("else"), rpctypes.ErrCompacted, status.Error(codes.Unavailable, "away")} {
		require.Equal(t, err, c.Explain(err, Read, prefix))
	}
}

// Otherwise each call of the daemon would try the password, several times a second.
func TestRefusedPasswordIsNotTriedAtEachCall(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, 0)
	registry := prometheus.NewRegistry()
	o := asAda(cluster.Addr(0))
	o.Registerer, o.Password, o.PasswordFile = registry, config.Secret{}, passwordFile(t, "guess")
	c := mustNew(t, o)
	began := time.Now()
	for range 20 {
		_, err := c.Get(t.Context(), prefix)
		require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
	}
	require.LessOrEqual(t, started(t, registry, "Authenticate"), 1+float64(time.Since(began)/loginPause))
	l := &login{}
	l.record("guess", rpctypes.ErrGRPCAuthFailed)
	require.Error(t, l.recentlyRefused("guess"))
	require.NoError(t, l.recentlyRefused("other"), "another password is tried at once")
	l.refused.until = time.Now()
	require.NoError(t, l.recentlyRefused("guess"), "the password may have been changed in etcd")
	l.record("guess", nil)
	require.NoError(t, l.recentlyRefused("guess"))
	l.record("guess", status.Error(codes.Unavailable, "away"))
	require.NoError(t, l.recentlyRefused("guess"), "etcd did not refuse it")
}

// Without a token etcd takes the common name of the certificate as the user.
func TestPasswordOverridesTheCertificate(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	admin := s.admin(t, s.ca.issue(t, s.dir, "root"))
	addUser(t, admin, "root", "", "root")
	addUser(t, admin, "ada", "secret", "unlocker")
	addUser(t, admin, "other", "", "other")
	grant(t, admin, "unlocker", prefix)
	user := func(certificate string) *Client {
		o := s.options(s.cluster.Addr(0), s.ca.issue(t, s.dir, certificate))
		o.Username, o.Password = "ada", config.NewSecret("secret")
		return mustNew(t, o)
	}
	early := user("stranger")
	_, err := early.Get(t.Context(), prefix)
	require.NoError(t, err, "before authentication is enabled")
	_, err = admin.AuthEnable(t.Context())
	require.NoError(t, err)
	for range 3 {
		_, err = early.Get(t.Context(), prefix)
		require.NoError(t, err, "after authentication was enabled")
	}
	for _, certificate := range []string{"stranger", "other"} {
		_, err = user(certificate).Put(t.Context(), prefix+"k", "v")
		require.NoError(t, err, certificate)
	}
	_, err = early.Get(t.Context(), "elsewhere")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "ada has no permission there")
}

// Each cause for which there is no connection names the key to change: at once if the client
// fails fast, at the deadline otherwise.
func TestNoConnectionSaysWhatToChange(t *testing.T) {
	t.Parallel()
	s, plain := newSecure(t), etcdtest.Start(t, localetcd.Options{})
	bad := newCA(t, "bad")
	client, stranger, end := s.ca.issue(t, s.dir, "client"), bad.issue(t, s.dir, "stranger"), until(-time.Minute)
	expired := s.ca.issueUntil(t, filepath.Join(s.dir, "expired"), "expired", end)
	badCA := bad.file(t, s.dir)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	for name, tt := range map[string]struct {
		edit  func(*Options)
		cause string
		want  string
	}{
		"TLS to plain etcd": {func(o *Options) { o.Endpoints = []string{plain.Addr(0)} }, "authentication handshake failed: ",
			"etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"},
		"https to plain etcd": {func(o *Options) { o.TLS, o.Endpoints = config.TLS{}, []string{"https://" + plain.Addr(0)} }, "authentication handshake failed: ",
			"etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"},
		"plain to etcd with TLS": {func(o *Options) { o.TLS = config.TLS{} }, "error reading server preface: ",
			"etcd may require TLS: begin etcd.endpoints with https://, and see etcd.tls.ca_file"},
		"system's authorities": {func(o *Options) { o.TLS.CAFile = "" }, "x509: certificate signed by unknown authority",
			"set etcd.tls.ca_file to the authority of etcd's certificate: only those of the system are trusted"},
		"wrong authority": {func(o *Options) { o.TLS.CAFile = badCA }, "x509: certificate signed by unknown authority",
			"etcd.tls.ca_file " + badCA + " does not have the authority of etcd's certificate"},
		"wrong name": {func(o *Options) { o.TLS.ServerName = "elsewhere" }, "certificate is valid for etcd.example, not elsewhere",
			"use an endpoint that etcd's certificate names, or set etcd.tls.server_name to a name in it"},
		"no client certificate": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = "", "" }, "error reading server preface: ",
			"etcd asks for a client certificate: set etcd.tls.cert_file and etcd.tls.key_file"},
		"expired client certificate": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = expired.cert, expired.key }, "error reading server preface: ",
			"the client certificate of etcd.tls.cert_file " + expired.cert + " expired at " + end.Format(time.RFC3339)},
		"a stranger's certificate": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = stranger.cert, stranger.key }, "error reading server preface: ",
			"etcd may not trust the client certificate of etcd.tls.cert_file " + stranger.cert},
		"plain etcd that hangs": {func(o *Options) { // which is noticed after a second, the first backoff of gRPC
			o.TLS, o.Endpoints, o.DialTimeout, o.RequestTimeout = config.TLS{}, []string{silent.Addr().String()}, time.Second, 3*time.Second
		},
			"error reading server preface: ", "it accepts connections and does not answer"},
		"refused": {func(o *Options) { o.Endpoints = []string{"127.0.0.1:1"} }, "dial tcp 127.0.0.1:1: connect: connection refused", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fast := range []bool{false, true} {
				o := s.options(s.cluster.Addr(0), client)
				o.FailFast = fast
				if !fast {
					o.RequestTimeout = time.Second
				}
				tt.edit(&o)
				var got *NoConnection
				// With TLS 1.3 the first write may fail before the refusal is read.
				etcdtest.Eventually(t, func() bool {
					c := mustNew(t, o)
					_, err := c.Put(t.Context(), "k", "v")
					require.Equal(t, !fast, errors.Is(err, context.DeadlineExceeded), "%v", err)
					return errors.As(c.Explain(err, ReadWrite, prefix), &got) && strings.Contains(got.Cause, tt.cause)
				})
				require.Equal(t, tt.want, got.Advice)
			}
		})
	}
}

// A user that etcd ignores is reported once, and the client knows it.
func TestIgnoredCredentialsAreReported(t *testing.T) {
	t.Parallel()
	var log etcdtest.Log
	open, guarded := etcdtest.Start(t, localetcd.Options{}), guarded(t, 0)
	for endpoint, ignored := range map[string]bool{open.Addr(0): true, guarded.Addr(0): false} {
		o := asAda(endpoint)
		o.Logger = log.Logger()
		c := mustNew(t, o)
		for range 3 {
			_, err := c.Get(t.Context(), prefix)
			require.NoError(t, err)
		}
		require.Equal(t, ignored, c.CredentialsIgnored())
	}
	require.Len(t, log.Lines("etcd has authentication disabled: etcd.username is ignored"), 1)
}
