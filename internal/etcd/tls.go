package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

// newTLS returns nil if nothing is set. The certificates of https:// endpoints are then verified
// against the system's roots. The client certificate and its key are read at each handshake, so
// the next connection uses a renewed pair. The CA file is read once (etcd#11555): a change of it
// needs a restart. It checks the files, since the errors of clientv3 do not say which option names
// the wrong one. It sets asked when a server has asked for a client certificate and there is none.
func newTLS(t config.TLS, lg *slog.Logger, asked *atomic.Bool) (*tls.Config, error) {
	if t == (config.TLS{}) {
		return nil, nil
	}
	if err := cmp.Or(checkCA(t.CAFile), checkPair(t.CertFile, t.KeyFile)); err != nil {
		return nil, err
	}
	info := transport.TLSInfo{
		TrustedCAFile: t.CAFile,
		CertFile:      t.CertFile,
		KeyFile:       t.KeyFile,
		ServerName:    t.ServerName,
		Logger:        newZap(lg),
	}
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("etcd.tls: %w", err)
	}
	if t.CertFile == "" {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked.Store(true)
			return &tls.Certificate{}, nil // which some servers allow
		}
	}
	return cfg, nil
}

func checkCA(file string) error {
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("etcd.tls.ca_file: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return fmt.Errorf("etcd.tls.ca_file: no certificate in %s", file)
	}
	for n := 1; ; n++ {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			return nil
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("etcd.tls.ca_file: %s: block %d is not a certificate: %w", file, n, err)
		}
	}
}

func checkPair(cert, key string) error {
	if cert == "" {
		return nil
	}
	certPEM, err := os.ReadFile(cert)
	if err != nil {
		return fmt.Errorf("etcd.tls.cert_file: %w", err)
	}
	keyPEM, err := os.ReadFile(key)
	if err != nil {
		return fmt.Errorf("etcd.tls.key_file: %w", err)
	}
	if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return fmt.Errorf("etcd.tls.cert_file %s, etcd.tls.key_file %s: %w", cert, key, err)
	}
	return nil
}

// expiry is the time when the certificates of a PEM file expire. The file is read again
// only if it has changed.
type expiry struct {
	path string
	of   func([]*x509.Certificate) time.Time

	mu    sync.Mutex
	read  os.FileInfo // the file that was read last
	until time.Time
}

// at returns the zero time if the file has no certificate or cannot be read.
func (e *expiry) at() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, err := os.Stat(e.path)
	if err != nil {
		e.read = nil
		return time.Time{}
	}
	if e.read == nil || !sameFile(e.read, now) {
		e.read, e.until = now, e.of(certificates(e.path))
	}
	return e.until
}

// sameFile compares the identity too: when Kubernetes updates a Secret it changes a link,
// possibly to a file of the same age and size.
func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// certificates returns the certificates of a file. It skips those that cannot be parsed,
// as crypto/x509 does with authorities.
func certificates(path string) (found []*x509.Certificate) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return found
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			found = append(found, c)
		}
	}
}

// leafOf returns the first certificate of a file, or nil.
func leafOf(path string) *x509.Certificate {
	if path == "" {
		return nil
	}
	if all := certificates(path); len(all) > 0 {
		return all[0]
	}
	return nil
}

func firstEnd(all []*x509.Certificate) time.Time {
	if len(all) == 0 {
		return time.Time{}
	}
	return all[0].NotAfter
}

func earliestEnd(all []*x509.Certificate) time.Time {
	earliest := firstEnd(all)
	for _, c := range all {
		if c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	return earliest
}

// expiries are those of the files that the options name; nil for a file that is not set.
type expiries struct {
	authorities, client *expiry
	// trusted is when the first of the authorities in use expires: those that the CA
	// file had in New.
	trusted time.Time
}

func newExpiries(t config.TLS) expiries {
	var x expiries
	if t.CAFile != "" {
		x.authorities = &expiry{path: t.CAFile, of: earliestEnd}
		x.trusted = x.authorities.at()
	}
	if t.CertFile != "" {
		x.client = &expiry{path: t.CertFile, of: firstEnd}
	}
	return x
}

// Certificates returns when the certificates in the files of the client expire. "etcd_ca" is the earliest expiry of the
// authorities in use and of those in the file. "etcd_client" is that of the client
// certificate in the file, which the next connection uses. It may be called concurrently,
// and often.
func (c *Client) Certificates() (all []api.Certificate) {
	if x := c.expiries; x.authorities != nil {
		end := x.authorities.at()
		if x.trusted.Before(end) {
			end = x.trusted
		}
		all = append(all, api.Certificate{Name: "etcd_ca", Expires: end.UTC()})
	}
	if x := c.expiries; x.client != nil {
		all = append(all, api.Certificate{Name: "etcd_client", Expires: x.client.at().UTC()})
	}
	return all
}
