package records

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// maxName is the maximum length of a name, in bytes.
const maxName = 200

// CheckUsers returns an error if requests to unlock are allowed but nothing would authenticate who
// makes them. It reads web.web_config_file only if that has to.
func CheckUsers(c config.Web) error {
	if !c.AllowUnlock || c.UserHeader != "" {
		return nil
	}
	file, err := read(c.WebConfigFile)
	if err == nil && len(file.Users) == 0 && !certificates(&file.TLSConfig) {
		err = fmt.Errorf("%s authenticates nobody: it needs basic_auth_users, or client_auth_type: RequireAndVerifyClientCert "+
			"with a client_ca_file: TLS alone is not enough for web.allow_unlock", c.WebConfigFile)
	}
	if err != nil {
		return fmt.Errorf("web.web_config_file: %w", err)
	}
	return nil
}

// UserOf returns the name of the user who makes the request, as valid UTF-8 of limited size. The error
// says what is missing.
func UserOf(r *http.Request, c config.Web) (string, error) {
	name, err := peer(r, c.WebConfigFile)
	if err != nil {
		return "", err
	}
	if c.UserHeader != "" {
		values := r.Header.Values(c.UserHeader)
		if len(values) != 1 || values[0] == "" {
			return "", fmt.Errorf("the request must have the header %s once, from the proxy that authenticates users", c.UserHeader)
		}
		if name != "" {
			name = " by " + name
		}
		name = clip(values[0]) + name
	}
	if name == "" {
		return "", errors.New("web.web_config_file does not authenticate users any more")
	}
	return name, nil
}

func read(path string) (c web.Config, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	err = yaml.Unmarshal(text, &c)
	c.TLSConfig.SetDirectory(filepath.Dir(path))
	return c, err
}

// certificates reports whether each connection needs a certificate of an authority that the file
// names. Without one, Go would trust those of the system.
func certificates(c *web.TLSConfig) bool {
	return c.ClientAuth == "RequireAndVerifyClientCert" && c.ClientCAsText+c.ClientCAs != ""
}

// peer returns the name under which the file authenticates the client of the connection, or "" if
// it authenticates nobody.
func peer(r *http.Request, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	file, err := read(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("web.web_config_file: %w", err)
	case len(file.Users) > 0:
		name, password, _ := r.BasicAuth()
		if bcrypt.CompareHashAndPassword([]byte(file.Users[name]), []byte(password)) != nil {
			return "", errors.New("neither a user of web.web_config_file nor the right password")
		}
		return clip(name), nil
	case certificates(&file.TLSConfig):
		return certified(r, &file.TLSConfig)
	}
	return "", nil
}

// certified returns the subject of the client certificate. It verifies it again, since the
// connection may be older than the file and what it names.
func certified(r *http.Request, c *web.TLSConfig) (string, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", errors.New("the connection has no client certificate: it is older than web.web_config_file")
	}
	trusted, err := web.ConfigToTLSConfig(c)
	if err != nil {
		return "", fmt.Errorf("web.web_config_file: %w", err)
	}
	leaf, others := r.TLS.PeerCertificates[0], x509.NewCertPool()
	for _, other := range r.TLS.PeerCertificates[1:] {
		others.AddCert(other)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: trusted.ClientCAs, Intermediates: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err == nil && trusted.VerifyPeerCertificate != nil {
		err = trusted.VerifyPeerCertificate([][]byte{leaf.Raw}, nil)
	}
	if err != nil {
		return "", fmt.Errorf("web.web_config_file does not accept the client certificate any more: %w", err)
	}
	return subject(leaf), nil
}

// subject returns the common name of a certificate, or else what it has instead.
func subject(c *x509.Certificate) string {
	name := c.Subject.CommonName
	for _, uri := range c.URIs { // as SPIFFE has it
		name = cmp.Or(name, uri.String())
	}
	for _, other := range append(c.EmailAddresses, c.DNSNames...) {
		name = cmp.Or(name, other)
	}
	return clip(cmp.Or(name, fmt.Sprintf("certificate %x", c.SerialNumber)))
}

func clip(name string) string { return protocol.Clip([]byte(name), maxName) }
