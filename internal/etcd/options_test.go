package etcd

import (
	"os"
	"path/filepath"
	"testing"

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
		"empty password":     {func(o *Options) { o.Username, o.PasswordFile = "u", empty }, "etcd.password_file: " + empty + " is empty"},
		"no password file":   {func(o *Options) { o.Username, o.PasswordFile = "u", missing }, "etcd.password_file: open " + missing + ": no such file or directory"},
		"no ca file":         {func(o *Options) { o.TLS.CAFile = missing }, "etcd.tls.ca_file: open " + missing + ": no such file or directory"},
		"ca without a cert":  {func(o *Options) { o.TLS.CAFile = empty }, "etcd.tls.ca_file: no certificate in " + empty},
		"key among the cas":  {func(o *Options) { o.TLS.CAFile = mixed }, "etcd.tls.ca_file: " + mixed + ": block 2 is not a certificate: x509: malformed tbs certificate"},
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
