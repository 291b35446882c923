package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type ca struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

type pair struct{ cert, key string }

func newCA(t *testing.T, name string) *ca {
	t.Helper()
	template := template(name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &ca{name: name, cert: cert, key: key}
}

func (c *ca) file(t *testing.T, dir string) string {
	t.Helper()
	return writePEM(t, filepath.Join(dir, c.name+"-ca.pem"), "CERTIFICATE", c.cert.Raw)
}

// issue writes a pair that replaces an earlier one of the same name. It is valid for an
// hour, for servers and clients, and for the names 127.0.0.1 and etcd.example.
func (c *ca) issue(t *testing.T, dir, commonName string) pair {
	t.Helper()
	return c.issueTo(t, filepath.Join(dir, commonName), commonName)
}

func (c *ca) issueTo(t *testing.T, path, commonName string) pair {
	t.Helper()
	return c.issueUntil(t, path, commonName, time.Now().Add(time.Hour))
}

func (c *ca) issueUntil(t *testing.T, path, commonName string, end time.Time) pair {
	t.Helper()
	template := template(commonName)
	template.NotAfter = end
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.DNSNames = []string{"etcd.example"}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, &key.PublicKey, c.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return pair{
		cert: writePEM(t, path+".pem", "CERTIFICATE", der),
		key:  writePEM(t, path+"-key.pem", "EC PRIVATE KEY", keyDER),
	}
}

func template(commonName string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) string {
	t.Helper()
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}
