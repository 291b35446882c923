package app_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// listener is one of the listeners of the daemon, each with a web configuration.
type listener struct {
	key  string
	file func(*config.Config) *string
	addr func(*daemon) string
	// path answers 200 without etcd.
	path string
}

func listeners() []listener {
	return []listener{
		{"ops", func(c *config.Config) *string { return &c.Ops.WebConfigFile }, func(d *daemon) string { return d.OpsAddr() }, "/livez"},
		{"web", func(c *config.Config) *string { return &c.Web.WebConfigFile }, func(d *daemon) string { return d.WebAddr() }, "/api/v1/status"},
	}
}

func eachListener(t *testing.T, test func(*testing.T, listener)) {
	for _, l := range listeners() {
		t.Run(l.key, func(t *testing.T) { test(t, l) })
	}
}

func (l listener) start(t *testing.T, web *webFiles) *daemon {
	t.Helper()
	return startDaemon(t, nowhere, func(c *config.Config) { *l.file(c) = web.path() })
}

// webFiles is a directory with a web configuration, its certificate and key.
type webFiles struct {
	t      *testing.T
	dir    string
	serial int64
	roots  *x509.CertPool
}

func newWebFiles(t *testing.T, content string) *webFiles {
	t.Helper()
	w := &webFiles{t: t, dir: t.TempDir(), roots: x509.NewCertPool()}
	w.write("web.yml", []byte(content))
	w.renew()
	return w
}

func (w *webFiles) path() string { return filepath.Join(w.dir, "web.yml") }

func (w *webFiles) write(name string, content []byte) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, name), content, 0o600))
}

// renew writes another certificate, with the next serial number.
func (w *webFiles) renew() {
	w.t.Helper()
	w.serial++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(w.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(w.serial),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(w.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(w.t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	w.write("cert.pem", certPEM)
	w.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
	require.True(w.t, w.roots.AppendCertsFromPEM(certPEM))
}

// answer is the status that a listener answered, and the serial number of its certificate.
type answer struct {
	status int
	serial int64
}

// get makes a request on a new connection.
func (w *webFiles) get(url string, credentials ...string) (answer, error) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, url, nil)
	require.NoError(w.t, err)
	if len(credentials) > 0 {
		req.SetBasicAuth(credentials[0], credentials[1])
	}
	client := newHTTP()
	client.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: w.roots, MinVersion: tls.VersionTLS12}}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	a := answer{status: resp.StatusCode}
	if resp.TLS != nil {
		a.serial = resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	return a, nil
}

func (w *webFiles) status(url string, credentials ...string) int {
	w.t.Helper()
	a, err := w.get(url, credentials...)
	require.NoError(w.t, err)
	return a.status
}

const withTLS = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"

func withUsers(t *testing.T, user, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)
	return fmt.Sprintf("basic_auth_users: {%s: %q}\n", user, hash)
}

// TLS on one listener does not affect the other.
func TestListenerWithTLS(t *testing.T) {
	t.Parallel()
	eachListener(t, func(t *testing.T, l listener) {
		w := newWebFiles(t, withTLS)
		d := l.start(t, w)
		for _, other := range listeners() {
			secure := "https://" + other.addr(d) + other.path
			plain := "http://" + other.addr(d) + other.path
			if other.key != l.key {
				require.Equal(t, http.StatusOK, w.status(plain))
				continue
			}
			require.Equal(t, http.StatusOK, w.status(secure))
			require.Equal(t, http.StatusBadRequest, w.status(plain), "plain text to a TLS listener")
			w.roots = x509.NewCertPool()
			_, err := w.get(secure)
			require.ErrorContains(t, err, "certificate signed by unknown authority")
		}
	})
}

func TestListenerWithBasicAuth(t *testing.T) {
	t.Parallel()
	eachListener(t, func(t *testing.T, l listener) {
		w := newWebFiles(t, withUsers(t, "ada", "secret"))
		d := l.start(t, w)
		url := "http://" + l.addr(d) + l.path
		require.Equal(t, http.StatusUnauthorized, w.status(url))
		require.Equal(t, http.StatusUnauthorized, w.status(url, "ada", "guess"))
		require.Equal(t, http.StatusUnauthorized, w.status(url, "eve", "secret"))
		require.Equal(t, http.StatusOK, w.status(url, "ada", "secret"))
		require.Equal(t, http.StatusUnauthorized, w.status("http://"+l.addr(d)+"/elsewhere"), "unknown paths need credentials, too")

		w.write("web.yml", []byte(withUsers(t, "ada", "rotated")))
		require.Equal(t, http.StatusUnauthorized, w.status(url, "ada", "secret"), "the file is read for each request")
		require.Equal(t, http.StatusOK, w.status(url, "ada", "rotated"))
	})
}

func TestListenerWithClientCertificates(t *testing.T) {
	t.Parallel()
	eachListener(t, func(t *testing.T, l listener) {
		w := newWebFiles(t, "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_auth_type: RequireAndVerifyClientCert, client_ca_file: cert.pem}\n")
		d := l.start(t, w)
		_, err := w.get("https://" + l.addr(d) + l.path)
		require.ErrorContains(t, err, "certificate required")
	})
}

// The next connection uses a renewed certificate. If the certificate does not match its key,
// connections fail but the daemon continues.
func TestListenerCertificateIsReadAtEachConnection(t *testing.T) {
	t.Parallel()
	eachListener(t, func(t *testing.T, l listener) {
		w := newWebFiles(t, withTLS)
		d := l.start(t, w)
		url := "https://" + l.addr(d) + l.path
		serial := func() int64 {
			a, err := w.get(url)
			require.NoError(t, err)
			return a.serial
		}
		require.EqualValues(t, 1, serial())
		w.renew()
		require.EqualValues(t, 2, serial())
		key, err := os.ReadFile(filepath.Join(w.dir, "key.pem"))
		require.NoError(t, err)
		w.write("key.pem", []byte("not a key"))
		_, err = w.get(url)
		require.Error(t, err)
		w.write("key.pem", key)
		require.EqualValues(t, 2, serial())
	})
}

// New refuses files that cannot work, with an error that names the key.
func TestListenerRefusesBadFiles(t *testing.T) {
	other := newWebFiles(t, "")
	for name, c := range map[string]struct{ content, want string }{
		"absent":              {"", "web_config_file: open "},
		"unknown key":         {"tls: {}\n", "web_config_file: yaml: unmarshal errors:\n  line 1: field tls not found"},
		"not YAML":            {"{", "web_config_file: yaml: "},
		"certificate absent":  {"tls_server_config: {cert_file: absent.pem, key_file: key.pem}\n", "web_config_file: failed to read cert_file ("},
		"key absent":          {"tls_server_config: {cert_file: cert.pem}\n", "web_config_file: missing one of key or key_file"},
		"key of another":      {"tls_server_config: {cert_file: cert.pem, key_file: " + other.dir + "/key.pem}\n", "web_config_file: failed to load X509KeyPair: tls: private key does not match"},
		"unknown TLS version": {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, min_version: SSL3}\n", "web_config_file: "},
		"clients' CA absent":  {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_auth_type: RequireAndVerifyClientCert, client_ca_file: absent.pem}\n", "web_config_file: open "},
		"password in clear":   {"basic_auth_users: {ada: secret}\n", "web_config_file: crypto/bcrypt: "},
	} {
		t.Run(name, func(t *testing.T) {
			eachListener(t, func(t *testing.T, l listener) {
				before := goleak.IgnoreCurrent()
				w := newWebFiles(t, c.content)
				if name == "absent" {
					require.NoError(t, os.Remove(w.path()))
				}
				config := newConfig(nowhere)
				*l.file(&config) = w.path()
				_, err := app.New(config, slog.New(slog.DiscardHandler))
				require.ErrorContains(t, err, l.key+"."+c.want)
				goleak.VerifyNone(t, before)
			})
		})
	}
}

// The connections of a listener are limited. Probes and scrapes do not wait for those of the API.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nowhere)
	const limit = 512
	open := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", d.WebAddr())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, "HEAD /api/v1/openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		return c, bufio.NewReader(c)
	}
	var first net.Conn
	for i := range limit {
		c, answer := open()
		status, err := answer.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200 OK\r\n", status)
		if i == 0 {
			first = c
		}
	}
	c, answer := open()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	_, err := answer.ReadString('\n')
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	status, _ := d.get("/livez")
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, first.Close())
	require.NoError(t, c.SetReadDeadline(time.Now().Add(etcdtest.Soon)))
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK\r\n", line)
}
