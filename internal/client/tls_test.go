package client

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A listener with TLS, whose certificate is its own authority and, for the sake of
// less, the client's, too.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, status())
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes are to fail
	server.StartTLS()
	defer server.Close()
	ca, cert, key := files(t, server)

	for name, c := range map[string]struct {
		options Options
		names   string
	}{
		"fine":                  {Options{CAFile: ca, CertFile: cert, KeyFile: key}, ""},
		"another name":          {Options{CAFile: ca, CertFile: cert, KeyFile: key, ServerName: "example.com"}, ""},
		"the wrong name":        {Options{CAFile: ca, CertFile: cert, KeyFile: key, ServerName: "unlocker.test"}, "certificate is valid for example.com"},
		"unknown authority":     {Options{CertFile: cert, KeyFile: key}, "certificate signed by unknown authority"},
		"no client certificate": {Options{CAFile: ca}, "certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.URLs = []string{server.URL}
			if err := ask(t, c.options); c.names != "" {
				require.ErrorContains(t, err, c.names)
			} else {
				require.NoError(t, err)
			}
		})
	}
	plain := "http://" + server.Listener.Addr().String()
	require.EqualError(t, ask(t, Options{URLs: []string{plain}}), "answers 400 Bad Request")
}

// files writes the certificate of httptest, and its key, as PEM.
func files(t *testing.T, server *httptest.Server) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	save := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	secret, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	return save("ca.pem", "CERTIFICATE", server.Certificate().Raw), save("cert.pem", "CERTIFICATE", server.Certificate().Raw), save("key.pem", "PRIVATE KEY", secret)
}
