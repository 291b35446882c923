package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// nowhere is the endpoint of an etcd that does not exist: the ops listener does not need one.
var nowhere = []string{"127.0.0.1:1"}

func TestOpsListener(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nowhere)
	for name, c := range map[string]struct {
		method, path, accept string
		status               int
		contentType, body    string
	}{
		"metrics":            {"GET", "/metrics", "", 200, "text/plain; version=0.0.4", "unlocker_build_info{"},
		"metrics for Chrome": {"GET", "/metrics", "text/html,*/*;q=0.8", 200, "text/plain; version=0.0.4", "unlocker_locks{"},
		"OpenMetrics":        {"GET", "/metrics", "application/openmetrics-text;version=1.0.0", 200, "application/openmetrics-text; version=1.0.0", "# EOF\n"},
		"protobuf": {"GET", "/metrics", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", 200,
			"application/vnd.google.protobuf", "unlocker_locks"},
		"metrics head": {"HEAD", "/metrics", "", 200, "text/plain; version=0.0.4", ""},
		"metrics post": {"POST", "/metrics", "", 405, "text/plain", "Method Not Allowed"},
		"livez":        {"GET", "/livez", "", 200, "text/plain; charset=utf-8", "ok\n"},
		"livez head":   {"HEAD", "/livez", "", 200, "text/plain; charset=utf-8", ""},
		"livez post":   {"POST", "/livez", "", 405, "text/plain", "Method Not Allowed"},
		"readyz":       {"GET", "/readyz", "", 503, "text/plain; charset=utf-8", "not ready: the first listing of /mutexes/ is not done"},
		"readyz head":  {"HEAD", "/readyz", "", 503, "text/plain; charset=utf-8", ""},
		"elsewhere":    {"GET", "/elsewhere", "", 404, "text/plain", "not found"},
		"root":         {"GET", "/", "", 404, "text/plain", "not found"},
		"beyond":       {"GET", "/metrics/x", "", 404, "text/plain", "not found"},
		"profiles":     {"GET", "/debug/pprof/", "", 404, "text/plain", "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(c.method, d.base+c.path, nil)
			require.NoError(t, err)
			if c.accept != "" {
				req.Header.Set("Accept", c.accept)
			}
			resp, err := d.http.Do(req)
			require.NoError(t, err)
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, c.status, resp.StatusCode)
			require.True(t, strings.HasPrefix(resp.Header.Get("Content-Type"), c.contentType), resp.Header.Get("Content-Type"))
			require.Contains(t, string(body), c.body)
			if c.method == http.MethodHead {
				require.Empty(t, body)
			}
		})
	}
}

func TestOpsListenerWithTLSAndBasicAuth(t *testing.T) {
	t.Parallel()
	webConfig, roots := newWebConfig(t, "scraper", "secret")
	d := startDaemon(t, nowhere, func(c *config.Config) { c.Ops.WebConfigFile = webConfig })
	d.http.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	d.base = "https://" + d.OpsAddr().String()

	status, _ := d.get("/metrics")
	require.Equal(t, http.StatusUnauthorized, status)
	status, _ = d.get("/livez")
	require.Equal(t, http.StatusUnauthorized, status, "basic auth guards the whole listener")
	for password, want := range map[string]int{"secret": http.StatusOK, "wrong": http.StatusUnauthorized} {
		req, err := http.NewRequest(http.MethodGet, d.base+"/metrics", nil)
		require.NoError(t, err)
		req.SetBasicAuth("scraper", password)
		resp, err := d.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode)
	}

	plain, err := newHTTP().Get("http://" + d.OpsAddr().String() + "/livez")
	require.NoError(t, err)
	require.NoError(t, plain.Body.Close())
	require.Equal(t, http.StatusBadRequest, plain.StatusCode, "plain text to a TLS listener")
}

// newWebConfig writes an exporter-toolkit web configuration and returns the
// roots to trust.
func newWebConfig(t *testing.T, user, password string) (path string, roots *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)
	web := fmt.Sprintf("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {%s: %q}\n", user, hash)
	for name, content := range map[string][]byte{"cert.pem": certPEM, "key.pem": keyPEM, "web.yml": []byte(web)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	roots = x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(certPEM))
	return filepath.Join(dir, "web.yml"), roots
}
