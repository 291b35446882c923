package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

// login intercepts the calls of clientv3 to etcd's Authenticate. With a user, clientv3.New logs in
// at once and fails if etcd is down, but the daemon must start anyway. Therefore login answers
// Authenticate with an empty token until New has made the client. Then it refuses the first call
// with "user name is empty", as etcd would, and the retry interceptor of clientv3 logs in and
// repeats the call. Expired tokens are renewed in the same way. A new stream always logs in.
//
// etcd would not always refuse that first call: without a token it takes the common name
// of the client certificate as the user, who may have other permissions.
type login struct {
	user    string
	initial string
	file    string
	logger  *slog.Logger
	begun   atomic.Bool
	state   atomic.Int32

	mu      sync.Mutex
	refused refusedLogin
}

// refusedLogin is the last password that etcd refused, and its error.
type refusedLogin struct {
	password string
	err      error
	until    time.Time
}

// loginPause is the time for which a refused password is not tried again: every call would
// try it, and checking one takes some 50 ms of etcd's CPU time.
const loginPause = 5 * time.Second

// States of a login.
const (
	loggedOut int32 = iota
	// authDisabled means that etcd had authentication disabled, which may change.
	authDisabled
	loggedIn
)

func newLogin(o Options) (*login, error) {
	l := &login{user: o.Username, initial: o.Password.Reveal(), file: o.PasswordFile, logger: o.Logger}
	if l.file == "" {
		return l, nil
	}
	var err error
	l.initial, err = l.read()
	return l, err
}

func (l *login) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	const authenticate = "/etcdserverpb.Auth/Authenticate"
	if method != authenticate {
		return l.call(func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	}
	if !l.begun.Load() {
		return nil // reply is zero: the empty token
	}
	ctx = context.WithValue(ctx, departureKey{}, nil) // which is for the request that needs the login
	asked := req.(*pb.AuthenticateRequest)
	password := asked.GetPassword()
	if l.file != "" {
		var err error
		if password, err = l.read(); err != nil {
			return err
		}
	}
	if err := l.recentlyRefused(password); err != nil {
		return err
	}
	err := invoke(ctx, method, &pb.AuthenticateRequest{Name: asked.GetName(), Password: password}, reply, cc, opts...)
	l.record(password, err)
	return err
}

// call makes a call other than Authenticate, if there is a token or none is needed.
func (l *login) call(invoke func() error) error {
	if l.user == "" {
		return invoke()
	}
	state := l.state.Load()
	if state == loggedOut {
		return rpctypes.ErrGRPCUserEmpty
	}
	err := invoke()
	if status.Code(err) == codes.PermissionDenied && state == authDisabled {
		l.state.CompareAndSwap(authDisabled, loggedOut)
		return rpctypes.ErrGRPCUserEmpty // authentication was enabled: see login
	}
	return err
}

// recentlyRefused returns the error with which etcd refused this password within the last
// loginPause, or nil.
func (l *login) recentlyRefused(password string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused.err != nil && l.refused.password == password && time.Now().Before(l.refused.until) {
		return l.refused.err
	}
	return nil
}

// record takes the state of the login from the answer of etcd.
func (l *login) record(password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = refusedLogin{}
	switch known := rpctypes.Error(err); {
	case known == nil:
		l.state.Store(loggedIn)
	case errors.Is(known, rpctypes.ErrAuthNotEnabled):
		if l.state.Swap(authDisabled) != authDisabled {
			l.logger.Warn("etcd has authentication disabled: etcd.username is ignored", "username", l.user)
		}
	case errors.Is(known, rpctypes.ErrAuthFailed):
		l.refused = refusedLogin{password, err, time.Now().Add(loginPause)}
	}
}

// read returns the password in the file without one trailing newline, which editors add.
func (l *login) read() (string, error) {
	content, err := os.ReadFile(l.file)
	if err != nil {
		return "", fmt.Errorf("etcd.password_file: %w", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("etcd.password_file: %s is empty", l.file)
	}
	return password, nil
}

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
