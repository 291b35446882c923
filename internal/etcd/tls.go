package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
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
	found, err := certificates(file)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no certificate in %s", file)
	}
	if err != nil {
		return fmt.Errorf("etcd.tls.ca_file: %w", err)
	}
	return nil
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

// certificates returns the certificates of a file. It skips blocks that cannot be parsed, as crypto/x509 does with
// authorities, and also returns the error of the first.
func certificates(path string) (found []*x509.Certificate, err error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return found, err
		}
		switch c, invalid := x509.ParseCertificate(block.Bytes); {
		case invalid != nil:
			err = cmp.Or(err, fmt.Errorf("%s: block %d is not a certificate: %w", path, n, invalid))
		case block.Type == "CERTIFICATE":
			found = append(found, c)
		}
	}
}

// leafOf returns the first certificate of a file, or nil.
func leafOf(path string) *x509.Certificate {
	if all, _ := certificates(path); len(all) > 0 {
		return all[0]
	}
	return nil
}

// earliestEnd returns when the first of the certificates of a file expires, or the zero time if it has none or
// cannot be read.
func earliestEnd(path string) (earliest time.Time) {
	all, _ := certificates(path)
	for _, c := range all {
		if earliest.IsZero() || c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	return earliest.UTC()
}

// Certificates returns when the certificates in the files of the client expire. "etcd_ca" is the earliest expiry of the
// authorities in use and of those in the file. "etcd_client" is that of the client
// certificate in the file, which the next connection uses. It reads the files.
func (c *Client) Certificates() (all []api.Certificate) {
	if file := c.options.TLS.CAFile; file != "" {
		end := earliestEnd(file)
		if c.trusted.Before(end) {
			end = c.trusted
		}
		all = append(all, api.Certificate{Name: "etcd_ca", Expires: end})
	}
	if file := c.options.TLS.CertFile; file != "" {
		own := api.Certificate{Name: "etcd_client"}
		if leaf := leafOf(file); leaf != nil {
			own.Expires = leaf.NotAfter.UTC()
		}
		all = append(all, own)
	}
	return all
}
