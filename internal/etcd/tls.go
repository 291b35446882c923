package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// TLS names PEM files. With none set, https:// endpoints are checked against the
// system's roots. The client certificate and its key are read again at each handshake,
// so a renewed pair is used from the next connection on. The CA file is read once
// (etcd#11555): after a change of the CA, restart.
type TLS struct {
	CAFile, CertFile, KeyFile string
	// ServerName is expected in the certificates of all endpoints instead of their hosts.
	ServerName string
}

// config returns nil where nothing is set. The files are tried here, since clientv3
// would say at best which file is wrong, never which option names it.
func (t TLS) config(lg *slog.Logger) (*tls.Config, error) {
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
		cfg.GetClientCertificate = noClientCertificate(lg)
	} else {
		cfg.GetClientCertificate = t.noteExpiry(cfg.GetClientCertificate, lg)
	}
	return cfg, nil
}

// noteExpiry says so when an expired certificate is shown: the server refuses it with
// an alert at best, and nothing else tells which side's certificate is meant.
func (t TLS) noteExpiry(read clientCertificate, lg *slog.Logger) clientCertificate {
	var told seldom
	return func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		c, err := read(info)
		if err == nil && c.Leaf != nil && time.Now().After(c.Leaf.NotAfter) && told.due(time.Now()) {
			lg.Warn("the client certificate of etcd.tls.cert_file has expired", "file", t.CertFile, "not_after", c.Leaf.NotAfter)
		}
		return c, err
	}
}

type clientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

// noClientCertificate goes on without one, which some servers allow. It says so, since
// those that do not may just hang up: all that gRPC tells is often a broken pipe.
func noClientCertificate(lg *slog.Logger) clientCertificate {
	var told seldom
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if told.due(time.Now()) {
			lg.Warn("etcd asks for a client certificate and etcd.tls.cert_file is not set")
		}
		return &tls.Certificate{}, nil
	}
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
			return fmt.Errorf("etcd.tls.ca_file: %s: block %d is no certificate: %w", t.CAFile, n, err)
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
