package records

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

const (
	onlyTLS = "tls_server_config: {cert_file: c, key_file: k}\n"
	mutual  = "tls_server_config: {cert_file: c, key_file: k, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca}\n"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web.yml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func users(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	require.NoError(t, err)
	return "basic_auth_users: {ada: " + string(hash) + "}\n"
}

// What only encrypts, or lets clients without an own certificate in, authenticates nobody.
func TestCheck(t *testing.T) {
	for content, ok := range map[string]bool{
		users(t):           true,
		onlyTLS + users(t): true,
		mutual:             true,
		"tls_server_config: {client_auth_type: RequireAndVerifyClientCert, client_ca: PEM}\n": true,
		"":                         false,
		onlyTLS:                    false,
		"basic_auth_users: {}\n":   false,
		"http_server_config: {}\n": false,
		"tls_server_config: {client_auth_type: RequireAndVerifyClientCert}\n":                  false, // the authorities of the system
		"tls_server_config: {client_auth_type: RequireAnyClientCert, client_ca_file: ca}\n":    false,
		"tls_server_config: {client_auth_type: VerifyClientCertIfGiven, client_ca_file: ca}\n": false,
		"tls_server_config: {client_auth_type: RequestClientCert, client_ca_file: ca}\n":       false,
		"basic_auth_users: ada\n": false,
	} {
		c := config.Web{AllowUnlock: true, WebConfigFile: write(t, content)}
		require.Equal(t, ok, CheckUsers(c) == nil, content)
		if err := CheckUsers(c); err != nil {
			require.ErrorContains(t, err, "web.web_config_file: ")
		}
		c.UserHeader = "X-User"
		require.NoError(t, CheckUsers(c))
		require.NoError(t, CheckUsers(config.Web{WebConfigFile: c.WebConfigFile}))
	}
	require.ErrorContains(t, CheckUsers(config.Web{AllowUnlock: true, WebConfigFile: "/absent"}), "web.web_config_file: open /absent")
}

func request(header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestOfBasicAuth(t *testing.T) {
	path := write(t, users(t))
	c := config.Web{WebConfigFile: path}
	for credentials, want := range map[[2]string]string{{"ada", "secret"}: "ada", {"ada", "guess"}: "", {"eve", "secret"}: "", {"", ""}: "", {"eve", ""}: ""} {
		r := request()
		r.SetBasicAuth(credentials[0], credentials[1])
		got, err := UserOf(r, c)
		require.Equal(t, want, got)
		require.Equal(t, want == "", err != nil)
	}
	_, err := UserOf(request(), c)
	require.Error(t, err)
	// Whoever got this far while the file has no users any more may claim any name.
	require.NoError(t, os.WriteFile(path, []byte(onlyTLS), 0o600))
	r := request()
	r.SetBasicAuth("ada", "secret")
	_, err = UserOf(r, c)
	require.ErrorContains(t, err, "does not authenticate users any more")
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	a := authority{&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, key}
	a.cert = a.sign(t, a.cert, public)
	return a
}

func (a authority) sign(t *testing.T, template *x509.Certificate, public ed25519.PublicKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// leaf returns the certificate of a client.
func (a authority) leaf(t *testing.T, template x509.Certificate) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(42)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	return a.sign(t, &template, a.key.Public().(ed25519.PublicKey))
}

func certificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// with writes a web configuration that trusts an authority, and what it names.
func (a authority) with(t *testing.T, dir, more string) config.Web {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	require.NoError(t, err)
	for name, content := range map[string][]byte{
		"ca": certificate(a.cert), "c": certificate(a.cert), "k": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"web.yml": []byte(strings.Replace(mutual, "}", more+"}", 1)),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return config.Web{WebConfigFile: filepath.Join(dir, "web.yml")}
}

func presented(cert *x509.Certificate) *http.Request {
	r := request()
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	return r
}

func TestOfCertificates(t *testing.T) {
	a := newAuthority(t)
	c := a.with(t, t.TempDir(), "")
	id, err := url.Parse("spiffe://example.org/ops")
	require.NoError(t, err)
	for want, leaf := range map[string]x509.Certificate{
		"ada":                      {Subject: pkix.Name{CommonName: "ada"}, DNSNames: []string{"other"}},
		"spiffe://example.org/ops": {URIs: []*url.URL{id}, DNSNames: []string{"other"}},
		"ada@example.org":          {EmailAddresses: []string{"ada@example.org"}},
		"certificate 2a":           {},
	} {
		got, err := UserOf(presented(a.leaf(t, leaf)), c)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	r := request()
	_, err = UserOf(r, c)
	require.ErrorContains(t, err, "no client certificate")
	r.TLS = &tls.ConnectionState{}
	_, err = UserOf(r, c)
	require.ErrorContains(t, err, "no client certificate")
}

// A connection may be older than the file, and last for longer than its certificate.
func TestOfCertificatesThatAreNotAcceptedAnyMore(t *testing.T) {
	a, other, dir := newAuthority(t), newAuthority(t), t.TempDir()
	ada := a.leaf(t, x509.Certificate{Subject: pkix.Name{CommonName: "ada"}, DNSNames: []string{"ada.example.org"}})
	c := a.with(t, dir, "")
	_, err := UserOf(presented(ada), c)
	require.NoError(t, err)
	for name, cert := range map[string]*x509.Certificate{
		"expired":     a.leaf(t, x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}),
		"of a server": a.leaf(t, x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		"of another":  other.leaf(t, x509.Certificate{Subject: pkix.Name{CommonName: "ada"}}),
	} {
		_, err := UserOf(presented(cert), c)
		require.ErrorContains(t, err, "does not accept the client certificate any more", name)
	}
	a.with(t, dir, ", client_allowed_sans: [ada.example.org]")
	_, err = UserOf(presented(ada), c)
	require.NoError(t, err)
	a.with(t, dir, ", client_allowed_sans: [bob.example.org]")
	_, err = UserOf(presented(ada), c)
	require.ErrorContains(t, err, "does not accept the client certificate any more")
	other.with(t, dir, "")
	_, err = UserOf(presented(ada), c)
	require.ErrorContains(t, err, "does not accept the client certificate any more")
}

func TestOfHeader(t *testing.T) {
	c := config.Web{UserHeader: "x-forwarded-user"}
	got, err := UserOf(request("X-Forwarded-User", "ada"), c)
	require.NoError(t, err)
	require.Equal(t, "ada", got)
	got, err = UserOf(request("X-Forwarded-User", strings.Repeat("a", 1000)+"\xff"), c)
	require.NoError(t, err)
	require.LessOrEqual(t, len(got), maxName+3)
	for _, r := range []*http.Request{
		request(), request("X-Forwarded-User", ""), request("X_Forwarded_User", "ada"),
		request("X-Forwarded-User", "mallory", "X-Forwarded-User", "ada"), // a proxy that adds instead of replacing
	} {
		_, err := UserOf(r, c)
		require.ErrorContains(t, err, "x-forwarded-user once")
	}
	// The proxy authenticates itself, too.
	c.WebConfigFile = write(t, users(t))
	r := request("X-Forwarded-User", "eve")
	_, err = UserOf(r, c)
	require.Error(t, err)
	r.SetBasicAuth("ada", "secret")
	got, err = UserOf(r, c)
	require.NoError(t, err)
	require.Equal(t, "eve by ada", got)
}
