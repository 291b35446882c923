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

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// TLS names PEM files. With none set, the certificates of https:// endpoints are verified
// against the system's roots. The client certificate and its key are read at each
// handshake, so the next connection uses a renewed pair. The CA file is read once
// (etcd#11555): a change of it needs a restart.
type TLS struct {
	CAFile, CertFile, KeyFile string
	// ServerName is the name that the certificates of all endpoints must have, instead of
	// the hosts of the endpoints.
	ServerName string
}

// config returns nil if nothing is set. It checks the files, since the errors of clientv3
// do not say which option names the wrong one. It sets asked when a server has asked for a
// client certificate and there is none.
func (t TLS) config(lg *slog.Logger, asked *atomic.Bool) (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	if err := cmp.Or(t.checkCA(), t.checkPair()); err != nil {
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

func (t TLS) checkCA() error {
	if t.CAFile == "" {
		return nil
	}
	content, err := os.ReadFile(t.CAFile)
	if err != nil {
		return fmt.Errorf("etcd.tls.ca_file: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return fmt.Errorf("etcd.tls.ca_file: no certificate in %s", t.CAFile)
	}
	for n := 1; ; n++ {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			return nil
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("etcd.tls.ca_file: %s: block %d is not a certificate: %w", t.CAFile, n, err)
		}
	}
}

func (t TLS) checkPair() error {
	if t.CertFile == "" {
		return nil
	}
	certPEM, err := os.ReadFile(t.CertFile)
	if err != nil {
		return fmt.Errorf("etcd.tls.cert_file: %w", err)
	}
	keyPEM, err := os.ReadFile(t.KeyFile)
	if err != nil {
		return fmt.Errorf("etcd.tls.key_file: %w", err)
	}
	if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return fmt.Errorf("etcd.tls.cert_file %s, etcd.tls.key_file %s: %w", t.CertFile, t.KeyFile, err)
	}
	return nil
}
