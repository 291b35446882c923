package etcd

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"sync"
	"time"
)

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

func newExpiries(t TLS) expiries {
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

// Certificates returns when the certificates in the files of the client expire, and the
// zero time for a file that cannot be read. "etcd_ca" is the earliest expiry of the
// authorities in use and of those in the file. "etcd_client" is that of the client
// certificate in the file, which the next connection uses. It may be called concurrently,
// and often.
func (c *Client) Certificates() map[string]time.Time {
	ends := make(map[string]time.Time)
	if x := c.expiries; x.authorities != nil {
		end := x.authorities.at()
		if x.trusted.Before(end) {
			end = x.trusted
		}
		ends["etcd_ca"] = end
	}
	if x := c.expiries; x.client != nil {
		ends["etcd_client"] = x.client.at()
	}
	return ends
}
