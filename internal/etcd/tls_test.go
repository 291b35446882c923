package etcd

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// secure is one member that requires a client certificate of ca.
type secure struct {
	cluster *etcdtest.Etcd
	ca      *ca
	dir     string
	caFile  string
}

func newSecure(t *testing.T) *secure {
	t.Helper()
	s := &secure{ca: newCA(t, "good"), dir: t.TempDir()}
	s.caFile = s.ca.file(t, s.dir)
	server := s.ca.issue(t, s.dir, "server")
	s.cluster = etcdtest.Start(t, localetcd.Options{
		TLS: localetcd.TLS{CertFile: server.cert, KeyFile: server.key, CAFile: s.caFile},
	})
	return s
}

func (s *secure) options(endpoint string, p pair) Options {
	o := options(endpoint)
	o.TLS = TLS{CAFile: s.caFile, CertFile: p.cert, KeyFile: p.key}
	return o
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	bad := newCA(t, "bad")
	good := s.ca.issue(t, s.dir, "client")
	for name, tt := range map[string]struct {
		edit func(*Options)
		want string // of the error; empty: success
	}{
		"client certificate": {func(*Options) {}, ""},
		"https endpoint":     {func(o *Options) { o.Endpoints = s.cluster.Endpoints() }, ""},
		"wrong CA":           {func(o *Options) { o.TLS.CAFile = bad.file(t, s.dir) }, "x509: certificate signed by unknown authority"},
		"server not trusted": {func(o *Options) { o.TLS.CAFile = "" }, "x509: certificate signed by unknown authority"},
		"server name": {func(o *Options) {
			_, port, _ := strings.Cut(s.cluster.Addr(0), ":")
			o.Endpoints, o.TLS.ServerName = []string{"localhost:" + port}, "etcd.example"
		}, ""},
		"wrong server name": {func(o *Options) { o.TLS.ServerName = "elsewhere" }, "certificate is valid for etcd.example, not elsewhere"},
		"a stranger's certificate": {func(o *Options) {
			p := bad.issue(t, s.dir, "stranger")
			o.TLS.CertFile, o.TLS.KeyFile = p.cert, p.key
			// In TLS 1.3 the client's handshake ends before the server refuses. The
			// client then gets an alert or a broken pipe, depending on the timing.
		}, "latest balancer error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := s.options(s.cluster.Addr(0), good)
			if tt.want != "" {
				o.RequestTimeout = time.Second
			}
			tt.edit(&o)
			c := mustNew(t, o)
			if tt.want == "" {
				_, err := c.Put(t.Context(), "k", "v")
				require.NoError(t, err)
				return
			}
			_, err := refused(t, c).Put(t.Context(), "k", "v")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// etcd takes the common name of the certificate as the user, whose permissions show which
// certificate the server got.
func TestRenewedClientCertificateIsUsedAtTheNextConnection(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	path := filepath.Join(s.dir, "client")
	current := s.ca.issueTo(t, path, "one")
	admin := s.admin(t, s.ca.issue(t, s.dir, "root"))
	addUser(t, admin, "root", "", "root")
	for _, user := range []string{"one", "two"} {
		addUser(t, admin, user, "", "role-"+user)
		grant(t, admin, "role-"+user, user)
	}
	_, err := admin.AuthEnable(t.Context())
	require.NoError(t, err)

	proxy := s.cluster.Proxy(0)
	c := mustNew(t, s.options(proxy.Addr(), current))
	eventuallyPut(t, c, "one")
	s.ca.issueTo(t, path, "two")
	_, err = c.Put(t.Context(), "two", "v")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "an open connection keeps its certificate")

	proxy.Cut()
	require.NoError(t, proxy.Heal())
	eventuallyPut(t, c, "two")
}

func (s *secure) admin(t *testing.T, p pair) *clientv3.Client {
	t.Helper()
	o := s.options(s.cluster.Addr(0), p)
	cfg, err := o.TLS.config(slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	return s.cluster.Connect(func(c *clientv3.Config) { c.TLS = cfg })
}

func addUser(t *testing.T, admin *clientv3.Client, user, password, role string) {
	t.Helper()
	options := &clientv3.UserAddOptions{NoPassword: password == ""}
	_, err := admin.UserAddWithOptions(t.Context(), user, password, options)
	require.NoError(t, err)
	_, err = admin.RoleAdd(t.Context(), role)
	require.NoError(t, err)
	_, err = admin.UserGrantRole(t.Context(), user, role)
	require.NoError(t, err)
}

func grant(t *testing.T, admin *clientv3.Client, role, prefix string) {
	t.Helper()
	_, err := admin.RoleGrantPermission(t.Context(), role, prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
}
