package etcd

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// until returns the time after d in whole seconds, as certificates have it.
func until(d time.Duration) time.Time { return time.Now().Add(d).Truncate(time.Second).UTC() }

func withCertificates(t *testing.T, bundle string, p pair) *Client {
	t.Helper()
	o := options("127.0.0.1:1")
	o.TLS = TLS{CAFile: bundle, CertFile: p.cert, KeyFile: p.key}
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
		want map[string]time.Time
	}{
		"none":                 {"", pair{}, map[string]time.Time{}},
		"first of a bundle":    {bundle, pair{}, map[string]time.Time{"etcd_ca": later}},
		"client":               {"", one, map[string]time.Time{"etcd_client": soon}},
		"leaf of a chain":      {"", pair{chain, two.key}, map[string]time.Time{"etcd_client": later}},
		"authority and client": {bundle, one, map[string]time.Time{"etcd_ca": later, "etcd_client": soon}},
	} {
		t.Run(name, func(t *testing.T) {
			c := withCertificates(t, tt.ca, tt.pair)
			require.Equal(t, tt.want, c.Certificates())
			require.Equal(t, tt.want, c.Certificates(), "cached")
		})
	}
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
	require.Equal(t, map[string]time.Time{"etcd_ca": later, "etcd_client": soon}, c.Certificates())

	authority.issueUntil(t, client, "client", later)
	require.Equal(t, later, c.Certificates()["etcd_client"], "renewed")
	require.NoError(t, os.Rename(p.cert, p.cert+".away"))
	require.Zero(t, c.Certificates()["etcd_client"], "missing")
	require.NoError(t, os.Rename(p.cert+".away", p.cert))
	require.Equal(t, later, c.Certificates()["etcd_client"], "back")
	require.NoError(t, os.WriteFile(p.cert, []byte("nothing"), 0o600))
	require.Zero(t, c.Certificates()["etcd_client"], "overwritten")

	last := authority.issueUntil(t, filepath.Join(dir, "ca2"), "ca", until(96*time.Hour))
	concat(t, bundle, last.cert)
	require.Equal(t, later, c.Certificates()["etcd_ca"], "the authority in use has not changed")
	first := authority.issueUntil(t, filepath.Join(dir, "ca3"), "ca", soon)
	concat(t, bundle, last.cert, first.cert)
	require.Equal(t, soon, c.Certificates()["etcd_ca"], "the next start uses the file")
}

// Kubernetes changes a link, possibly to a file of the same age and size.
func TestCertificatesFollowALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := newCA(t, "ca")
	ends := map[string]time.Time{"old": until(time.Hour), "new": until(2 * time.Hour)}
	link := filepath.Join(dir, "current")
	e := &expiry{path: filepath.Join(link, "c.pem"), of: firstEnd}
	stamp := time.Now().Add(-time.Minute)
	for _, version := range []string{"old", "new"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		p := authority.issueUntil(t, filepath.Join(dir, version, "c"), "c", ends[version])
		require.NoError(t, os.Chtimes(p.cert, stamp, stamp))
		_ = os.Remove(link) // the first time there is none
		require.NoError(t, os.Symlink(version, link))
		require.Equal(t, ends[version], e.at())
	}
}

func TestCertificateFileIsReadWhenItChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newCA(t, "ca").issue(t, dir, "client")
	read := 0
	e := &expiry{path: p.cert, of: firstEnd}
	count := e.of
	e.of = func(c []*x509.Certificate) time.Time { read++; return count(c) }
	for range 3 {
		require.False(t, e.at().IsZero())
	}
	require.Equal(t, 1, read)
}

func TestClientCertificateThatVanishedIsNamed(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	p := s.ca.issue(t, s.dir, "client")
	o := s.options(s.cluster.Addr(0), p)
	o.RequestTimeout = time.Second
	c := mustNew(t, o)
	require.NoError(t, os.Remove(p.key))
	_, err := refused(t, c).Put(t.Context(), "k", "v")
	require.ErrorContains(t, err, "open "+p.key+": no such file or directory")
}

func TestExpiredServerCertificateIsNamed(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	o := s.options(s.cluster.Addr(0), s.ca.issue(t, s.dir, "client"))
	o.RequestTimeout = time.Second
	server := s.ca.issueUntil(t, filepath.Join(s.dir, "server"), "server", until(-time.Minute)) // read at each handshake
	require.FileExists(t, server.cert)
	_, err := refused(t, mustNew(t, o)).Put(t.Context(), "k", "v")
	require.ErrorContains(t, err, "certificate has expired or is not yet valid")
}
