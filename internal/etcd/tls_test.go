package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
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
		TLS: transport.TLSInfo{CertFile: server.cert, KeyFile: server.key, TrustedCAFile: s.caFile, ClientCertAuth: s.caFile != ""},
	})
	return s
}

func (s *secure) options(endpoint string, p pair) Options {
	o := options(endpoint)
	o.TLS = config.TLS{CAFile: s.caFile, CertFile: p.cert, KeyFile: p.key}
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
	cfg, err := newTLS(o.TLS, slog.New(slog.DiscardHandler), nil)
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

// until returns the time after d in whole seconds, as certificates have it.
func until(d time.Duration) time.Time { return time.Now().Add(d).Truncate(time.Second).UTC() }

func withCertificates(t *testing.T, bundle string, p pair) *Client {
	t.Helper()
	o := options("127.0.0.1:1")
	o.TLS = config.TLS{CAFile: bundle, CertFile: p.cert, KeyFile: p.key}
	return mustNew(t, o)
}

func concat(t *testing.T, to string, from ...string) {
	t.Helper()
	var all bytes.Buffer
	for _, path := range from {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		all.Write(content)
	}
	require.NoError(t, os.WriteFile(to, all.Bytes(), 0o600))
}

func TestCertificatesEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := newCA(t, "ca")
	soon, later, last := until(time.Hour), until(48*time.Hour), until(72*time.Hour)
	one := authority.issueUntil(t, filepath.Join(dir, "one"), "one", soon)
	two := authority.issueUntil(t, filepath.Join(dir, "two"), "two", later)
	three := authority.issueUntil(t, filepath.Join(dir, "three"), "three", last)
	garbage := filepath.Join(dir, "garbage.pem")
	require.NoError(t, os.WriteFile(garbage, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("none")}), 0o600))
	bundle := filepath.Join(dir, "bundle.pem")
	concat(t, bundle, three.cert, two.cert)
	chain := filepath.Join(dir, "chain.pem")
	concat(t, chain, two.key, two.cert, garbage, one.cert)
	for name, tt := range map[string]struct {
		ca   string
		pair pair
		want []api.Certificate
	}{
		"none":                 {"", pair{}, nil},
		"first of a bundle":    {bundle, pair{}, []api.Certificate{{Name: "etcd_ca", Expires: later}}},
		"client":               {"", one, []api.Certificate{{Name: "etcd_client", Expires: soon}}},
		"leaf of a chain":      {"", pair{chain, two.key}, []api.Certificate{{Name: "etcd_client", Expires: later}}},
		"authority and client": {bundle, one, []api.Certificate{{Name: "etcd_ca", Expires: later}, {Name: "etcd_client", Expires: soon}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := withCertificates(t, tt.ca, tt.pair)
			require.Equal(t, tt.want, c.Certificates())
		})
	}
}

func expires(c *Client, name string) time.Time {
	for _, one := range c.Certificates() {
		if one.Name == name {
			return one.Expires
		}
	}
	return time.Time{}
}

func TestCertificatesFollowTheirFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := newCA(t, "ca")
	soon, later := until(time.Hour), until(48*time.Hour)
	client := filepath.Join(dir, "client")
	p := authority.issueUntil(t, client, "client", soon)
	bundle := filepath.Join(dir, "bundle.pem")
	concat(t, bundle, authority.issueUntil(t, filepath.Join(dir, "ca1"), "ca", later).cert)
	c := withCertificates(t, bundle, p)
	require.Equal(t, []api.Certificate{{Name: "etcd_ca", Expires: later}, {Name: "etcd_client", Expires: soon}}, c.Certificates())

	authority.issueUntil(t, client, "client", later)
	require.Equal(t, later, expires(c, "etcd_client"), "renewed")
	require.NoError(t, os.Rename(p.cert, p.cert+".away"))
	require.Zero(t, expires(c, "etcd_client"), "missing")
	require.NoError(t, os.Rename(p.cert+".away", p.cert))
	require.Equal(t, later, expires(c, "etcd_client"), "back")
	require.NoError(t, os.WriteFile(p.cert, []byte("nothing"), 0o600))
	require.Zero(t, expires(c, "etcd_client"), "overwritten")

	last := authority.issueUntil(t, filepath.Join(dir, "ca2"), "ca", until(96*time.Hour))
	concat(t, bundle, last.cert)
	require.Equal(t, later, expires(c, "etcd_ca"), "the authority in use has not changed")
	first := authority.issueUntil(t, filepath.Join(dir, "ca3"), "ca", soon)
	concat(t, bundle, last.cert, first.cert)
	require.Equal(t, soon, expires(c, "etcd_ca"), "the next start uses the file")
}

func TestClientCertificateThatVanishedIsNamed(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	p := s.ca.issue(t, s.dir, "client")
	o := s.options(s.cluster.Addr(0), p)
	o.FailFast = true
	c := mustNew(t, o)
	require.NoError(t, os.Remove(p.key))
	_, err := refused(t, c).Put(t.Context(), "k", "v")
	require.ErrorContains(t, err, "open "+p.key+": no such file or directory")
}

// The server is a plain TLS listener, which answers a handshake at once whatever the load.
func TestExpiredServerCertificateIsNamed(t *testing.T) {
	t.Parallel()
	s := &secure{ca: newCA(t, "good"), dir: t.TempDir()}
	s.caFile = s.ca.file(t, s.dir)
	server := s.ca.issueUntil(t, filepath.Join(s.dir, "server"), "server", until(-time.Minute))
	certificate, err := tls.LoadX509KeyPair(server.cert, server.key)
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context()) // the client refuses it
			_ = conn.Close()
		}
	})
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { _ = listener.Close() })

	o := s.options(listener.Addr().String(), s.ca.issue(t, s.dir, "client"))
	o.FailFast = true
	_, err = refused(t, mustNew(t, o)).Put(t.Context(), "k", "v")
	require.ErrorContains(t, err, "certificate has expired or is not yet valid")
}
