package etcd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	missing := filepath.Join(dir, "missing")
	a, b := newCA(t, "a"), newCA(t, "b")
	pair, other := a.issue(t, dir, "one"), b.issue(t, dir, "two")
	mixed := filepath.Join(dir, "mixed.pem")
	concat(t, mixed, pair.cert, pair.key)

	for name, tt := range map[string]struct {
		edit func(*Options)
		want string
	}{
		"no endpoint":        {func(o *Options) { o.Endpoints = nil }, "etcd.endpoints: at least one is needed"},
		"no port":            {func(o *Options) { o.Endpoints = []string{"etcd"} }, `etcd.endpoints: "etcd": want host:port`},
		"no port in url":     {func(o *Options) { o.Endpoints = []string{"http://etcd"} }, `etcd.endpoints: "http://etcd": want host:port`},
		"unknown scheme":     {func(o *Options) { o.Endpoints = []string{"ftp://etcd:1"} }, `etcd.endpoints: "ftp://etcd:1": unknown scheme ftp`},
		"mixed schemes":      {func(o *Options) { o.Endpoints = []string{"https://a:1", "http://b:1"} }, `etcd.endpoints: "http://b:1": all must have the scheme of the first`},
		"tls over http":      {func(o *Options) { o.Endpoints, o.TLS.CAFile = []string{"http://a:1"}, a.file(t, dir) }, "etcd.endpoints: http:// with etcd.tls set; write https://, or host:port alone"},
		"dial timeout":       {func(o *Options) { o.DialTimeout = 0 }, "etcd.dial_timeout: must be positive, not 0s"},
		"request timeout":    {func(o *Options) { o.RequestTimeout = -time.Second }, "etcd.request_timeout: must be positive, not -1s"},
		"two passwords":      {func(o *Options) { o.Username, o.Password, o.PasswordFile = "u", "p", empty }, "etcd.password and etcd.password_file exclude each other"},
		"user alone":         {func(o *Options) { o.Username = "u" }, "etcd.username: needs etcd.password or etcd.password_file"},
		"password alone":     {func(o *Options) { o.Password = "p" }, "etcd.password: needs etcd.username"},
		"empty password":     {func(o *Options) { o.Username, o.PasswordFile = "u", empty }, "etcd.password_file: " + empty + " is empty"},
		"no password file":   {func(o *Options) { o.Username, o.PasswordFile = "u", missing }, "etcd.password_file: open " + missing + ": no such file or directory"},
		"no ca file":         {func(o *Options) { o.TLS.CAFile = missing }, "etcd.tls.ca_file: open " + missing + ": no such file or directory"},
		"ca without a cert":  {func(o *Options) { o.TLS.CAFile = empty }, "etcd.tls.ca_file: no certificate in " + empty},
		"key among the cas":  {func(o *Options) { o.TLS.CAFile = mixed }, "etcd.tls.ca_file: " + mixed + ": block 2 is no certificate: x509: malformed tbs certificate"},
		"cert without key":   {func(o *Options) { o.TLS.CertFile = pair.cert }, "etcd.tls.cert_file and etcd.tls.key_file need each other"},
		"no cert file":       {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = missing, pair.key }, "etcd.tls.cert_file: open " + missing + ": no such file or directory"},
		"no key file":        {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = pair.cert, missing }, "etcd.tls.key_file: open " + missing + ": no such file or directory"},
		"key of another":     {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = pair.cert, other.key }, "etcd.tls.cert_file " + pair.cert + ", etcd.tls.key_file " + other.key + ": tls: private key does not match public key"},
		"no pem in the cert": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = empty, pair.key }, "etcd.tls.cert_file " + empty + ", etcd.tls.key_file " + pair.key + ": tls: failed to find any PEM data in certificate input"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options("127.0.0.1:1")
			tt.edit(&o)
			_, err := New(o)
			require.EqualError(t, err, tt.want)
		})
	}
}

func TestNewAcceptsEndpoints(t *testing.T) {
	t.Parallel()
	for _, e := range []string{"etcd:2379", "10.0.0.1:2379", "[::1]:2379", "http://etcd:2379", "https://etcd:2379/", "unix:///run/etcd.sock", "unix:etcd.sock"} {
		c, err := New(options(e))
		require.NoError(t, err, e)
		require.NoError(t, c.Close(), e)
	}
}
