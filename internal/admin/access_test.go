package admin_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const (
	locks    = "/mutexes/"
	election = "/unlocker/leader/mutexes/"
	audits   = "/unlocker/audit/mutexes/"
	pauses   = "/unlocker/pause/mutexes/"
	tickets  = "/unlocker/waiters/mutexes/"
)

// The attempts that follow the login.
const (
	readLocks, watchLocks, deleteLocks         = "read below " + locks, "watch below " + locks, "delete below " + locks
	readElection, watchElection, writeElection = "read below " + election, "watch below " + election, "write and delete below " + election
	readRecords, watchRecords                  = "read below " + audits, "watch below " + audits
	readPauses, watchPauses                    = "read below " + pauses, "watch below " + pauses
	readTickets, watchTickets                  = "read below " + tickets, "watch below " + tickets
	writeRecords                               = "write below " + audits
	lease                                      = "get a lease for the election"
)

// tried is an etcd, and a daemon's configuration for it.
type tried struct {
	*etcdtest.Etcd
	config config.Config
	t      *testing.T
}

func newTried(t *testing.T, o localetcd.Options) *tried {
	t.Helper()
	e := etcdtest.Start(t, o)
	c := config.Default()
	c.Etcd.Endpoints, c.Etcd.RequestTimeout = []string{e.Addr(0)}, etcdtest.Soon
	return &tried{e, c, t}
}

// guarded has authentication and a user with readwrite on the prefixes and the records, and read on
// the pauses.
func guarded(t *testing.T, prefixes ...string) *tried {
	t.Helper()
	w := newTried(t, localetcd.Options{})
	w.Guard("ada", "secret", append(prefixes, audits)...)
	w.read(pauses)
	w.read(tickets)
	w.config.Etcd.Username, w.config.Etcd.Password = "ada", config.NewSecret("secret")
	return w
}

// read grants the user read on a prefix.
func (w *tried) read(prefix string) {
	w.t.Helper()
	_, err := w.Client.RoleGrantPermission(w.t.Context(), "ada", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermRead))
	require.NoError(w.t, err)
}

// report calls TryAccess.
func (w *tried) report(ctx context.Context, report func(admin.Attempt)) error {
	a, err := admin.Open(w.config, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { require.NoError(w.t, a.Close()) }()
	return a.TryAccess(ctx, report)
}

// try returns the attempts in order, and their answers or errors.
func (w *tried) try(ctx context.Context) (tried []string, answers, failed map[string]string) {
	w.t.Helper()
	answers, failed = map[string]string{}, map[string]string{}
	err := w.report(ctx, func(a admin.Attempt) {
		tried = append(tried, a.What)
		if answers[a.What] = a.Answer; a.Err != nil {
			failed[a.What] = a.Err.Error()
		}
	})
	require.NoError(w.t, err)
	return tried, answers, failed
}

// revision returns the revision of etcd, which each change increments.
func (w *tried) revision() int64 {
	w.t.Helper()
	resp, err := w.Client.Get(w.t.Context(), "x")
	require.NoError(w.t, err)
	return resp.Header.Revision
}

func TestEachRightIsTriedAndNothingChanges(t *testing.T) {
	t.Parallel()
	w := guarded(t, locks, election)
	w.Put(w.Lock("a", time.Now(), time.Now())...)
	w.Put(clientv3.OpPut(election+"1", "replica"))
	before, keys := w.revision(), len(w.Keys(""))
	tried, answers, failed := w.try(t.Context())
	require.Empty(t, failed)
	require.Equal(t, []string{"connect to " + w.Addr(0), `log in as user "ada"`, readLocks, watchLocks, deleteLocks,
		readRecords, watchRecords, readPauses, watchPauses, readTickets, watchTickets, writeRecords, readElection, watchElection, writeElection, lease}, tried)
	require.Regexp(t, `^6 keys at revision \d+$`, answers[readLocks])
	require.Regexp(t, `^1 keys at revision \d+$`, answers[readElection])
	require.Equal(t, "permitted, nothing changed", answers[deleteLocks])
	require.Equal(t, "accepted", answers[`log in as user "ada"`])
	require.Equal(t, before, w.revision())
	require.Len(t, w.Keys(""), keys)
	leases, err := w.Client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
}

func TestMissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	const needs = `etcdserver: permission denied: user "ada" needs `
	needsLocks, needsElection := needs+"readwrite on [/mutexes/, /mutexes0) (prefix /mutexes/)", needs+"readwrite on [/unlocker/leader/mutexes/, /unlocker/leader/mutexes0) (prefix /unlocker/leader/mutexes/)"
	needsRead := needs + "read on [/mutexes/, /mutexes0) (prefix /mutexes/)"
	needsElsewhere := needs + "read on [/elsewhere/, /elsewhere0) (prefix /elsewhere/)"
	for name, tt := range map[string]struct {
		granted []string
		readers string
		edit    func(*config.Config)
		want    map[string]string
	}{
		"the locks":                 {[]string{election}, "", nil, map[string]string{readLocks: needsLocks, watchLocks: needsLocks, deleteLocks: needsLocks}},
		"part of them":              {[]string{election, locks + "billing/"}, "", nil, map[string]string{readLocks: needsLocks, watchLocks: needsLocks, deleteLocks: needsLocks}},
		"to delete":                 {[]string{election}, locks, nil, map[string]string{deleteLocks: needsLocks}},
		"the election":              {[]string{locks}, "", nil, map[string]string{readElection: needsElection, watchElection: needsElection, writeElection: needsElection}},
		"to write for the election": {[]string{locks}, election, nil, map[string]string{writeElection: needsElection}},
		"only read, in a dry run":   {[]string{election}, locks, func(c *config.Config) { c.Reaper.Mode = "dry-run" }, map[string]string{}},
		"the locks, in a dry run": {[]string{election}, "", func(c *config.Config) { c.Reaper.Mode = "dry-run" },
			map[string]string{readLocks: needsRead, watchLocks: needsRead}},
		"the pauses": {[]string{locks, election}, "", func(c *config.Config) { c.PausePrefix = "/elsewhere" }, map[string]string{
			"read below /elsewhere/": needsElsewhere, "watch below /elsewhere/": needsElsewhere}},
		"the tickets": {[]string{locks, election}, "", func(c *config.Config) { c.WaitersPrefix = "/elsewhere" }, map[string]string{
			"read below /elsewhere/": needsElsewhere, "watch below /elsewhere/": needsElsewhere}},
		"a native prefix": {[]string{locks, election, "/locks/a/"}, "/native/", func(c *config.Config) { c.NativePrefixes = []string{"/native/", "/elsewhere/"} },
			map[string]string{"read below /elsewhere/": needsElsewhere}},
		"no election": {[]string{locks}, "", func(c *config.Config) { c.Election.Enabled = false }, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := guarded(t, tt.granted...)
			if tt.readers != "" {
				w.read(tt.readers)
			}
			if tt.edit != nil {
				tt.edit(&w.config)
			}
			_, _, failed := w.try(t.Context())
			require.Equal(t, tt.want, failed)
		})
	}
}

func TestRightToTheRecordsIsTried(t *testing.T) {
	t.Parallel()
	w := guarded(t, locks, election)
	_, err := w.Client.RoleRevokePermission(t.Context(), "ada", audits, clientv3.GetPrefixRangeEnd(audits))
	require.NoError(t, err)
	_, _, failed := w.try(t.Context())
	const needs = `etcdserver: permission denied: user "ada" needs read on [/unlocker/audit/mutexes/, /unlocker/audit/mutexes0) (prefix /unlocker/audit/mutexes/)`
	require.Equal(t, []string{needs, needs}, []string{failed[readRecords], failed[watchRecords]})
	require.Contains(t, failed[writeRecords], `user "ada" needs readwrite on [/unlocker/audit/mutexes/, `)
	require.Len(t, failed, 3)
}

// With web.allow_unlock the daemon writes records, questions and pauses, and deletes locks, in a dry run, too.
func TestRightToUnlockIsTried(t *testing.T) {
	t.Parallel()
	w := guarded(t, election)
	w.read(locks)
	_, err := w.Client.RoleRevokePermission(t.Context(), "ada", audits, clientv3.GetPrefixRangeEnd(audits))
	require.NoError(t, err)
	w.read(audits)
	w.config.Reaper.Mode, w.config.Web.AllowUnlock = "dry-run", true
	_, _, failed := w.try(t.Context())
	require.Len(t, failed, 4)
	require.Contains(t, failed["write and delete below /unlocker/pause/mutexes/"], `user "ada" needs readwrite on [/unlocker/pause/mutexes/, `)
	require.Contains(t, failed["delete below "+locks], `user "ada" needs readwrite on [/mutexes/, `)
	require.Contains(t, failed[writeRecords], `user "ada" needs readwrite on [/unlocker/audit/mutexes/, `)
	require.Contains(t, failed["write below /unlocker/ask/mutexes/"], `user "ada" needs readwrite on [/unlocker/ask/mutexes/, `)
}

func TestLoginsAreTried(t *testing.T) {
	t.Parallel()
	w, open := guarded(t, locks, election), newTried(t, localetcd.Options{})
	connect := "connect to " + w.Addr(0)
	w.config.Etcd.Password = config.NewSecret("guess")
	tried, _, failed := w.try(t.Context())
	require.Equal(t, []string{connect, `log in as user "ada"`}, tried, "nothing else could succeed")
	require.Contains(t, failed[`log in as user "ada"`], `etcd.username "ada" with the password of etcd.password`)

	w.config.Etcd.Username, w.config.Etcd.Password = "", config.NewSecret("")
	tried, _, failed = w.try(t.Context())
	require.Equal(t, []string{connect, "use etcd without a user"}, tried)
	require.Contains(t, failed["use etcd without a user"], "etcd has authentication on: set etcd.username")

	_, answers, failed := open.try(t.Context())
	require.Empty(t, failed)
	require.Equal(t, "answers", answers["use etcd without a user"])
	open.config.Etcd.Username, open.config.Etcd.Password = "ada", config.NewSecret("secret")
	_, answers, failed = open.try(t.Context())
	require.Empty(t, failed)
	require.Equal(t, "etcd has authentication disabled: etcd.username is ignored", answers[`log in as user "ada"`])
}

func TestEachEndpointIsTried(t *testing.T) {
	t.Parallel()
	w := newTried(t, localetcd.Options{})
	w.config.Etcd.Endpoints = []string{"127.0.0.1:1", w.Addr(0)}
	tried, _, failed := w.try(t.Context())
	require.Len(t, tried, 17, "one answers, so the rights are tried")
	require.Equal(t, map[string]string{"connect to 127.0.0.1:1": "no connection: dial tcp 127.0.0.1:1: connect: connection refused"}, failed)

	w.config.Etcd.Endpoints = []string{"127.0.0.1:1"}
	tried, _, _ = w.try(t.Context())
	require.Equal(t, []string{"connect to 127.0.0.1:1"}, tried)

	w.config.Etcd.Endpoints, w.config.Etcd.TLS.ServerName = []string{w.Addr(0)}, "x"
	_, _, failed = w.try(t.Context())
	require.Contains(t, failed["connect to "+w.Addr(0)], "etcd may not use TLS: ")
}

func TestCertificatesAreTried(t *testing.T) {
	t.Parallel()
	valid, expired := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	cert, key := certificate(t, valid)
	oldCert, oldKey := certificate(t, expired)
	w := newTried(t, localetcd.Options{TLS: transport.TLSInfo{CertFile: cert, KeyFile: key, TrustedCAFile: cert, ClientCertAuth: true}})
	files := &w.config.Etcd.TLS
	files.CAFile, files.CertFile, files.KeyFile = cert, cert, key
	tried, answers, failed := w.try(t.Context())
	require.Empty(t, failed)
	trust, use, connect := "trust etcd.tls.ca_file "+cert, "use etcd.tls.cert_file "+cert, "connect to "+w.Addr(0)
	require.Equal(t, []string{trust, use, connect, "use etcd with the client certificate and no password"}, tried[:4])
	require.Equal(t, "expires at "+valid.UTC().Format(time.RFC3339), answers[use])

	files.CertFile, files.KeyFile = oldCert, oldKey
	_, _, failed = w.try(t.Context())
	require.Equal(t, "expired at "+expired.UTC().Format(time.RFC3339), failed["use etcd.tls.cert_file "+oldCert])
	w.fails(connect, ": the client certificate of etcd.tls.cert_file "+oldCert+" expired at ")

	files.CertFile, files.KeyFile = "", ""
	w.fails(connect, ": etcd asks for a client certificate: set etcd.tls.cert_file and etcd.tls.key_file")

	files.CAFile = "absent"
	err := w.report(t.Context(), func(a admin.Attempt) { require.Fail(t, a.What) })
	require.EqualError(t, err, "etcd.tls.ca_file: open absent: no such file or directory")
}

// fails waits until an attempt fails with these words. With TLS 1.3 the first write may fail
// before etcd's refusal is read.
func (w *tried) fails(what, words string) {
	w.t.Helper()
	etcdtest.Eventually(w.t, func() bool {
		_, _, failed := w.try(w.t.Context())
		return strings.Contains(failed[what], words)
	})
}

// certificate writes a certificate that is its own authority, for servers on 127.0.0.1 and
// for clients.
func certificate(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: end.Add(-24 * time.Hour), NotAfter: end, Subject: pkix.Name{CommonName: "ada"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return cert, key
}

func TestHangingEtcdEndsTheAttempt(t *testing.T) {
	t.Parallel()
	w := newTried(t, localetcd.Options{})
	p := w.Proxy(0)
	w.config.Etcd.Endpoints, w.config.Etcd.RequestTimeout = []string{p.Addr()}, 300*time.Millisecond
	p.HoldReplies()
	tried, _, failed := w.try(t.Context())
	require.Equal(t, []string{"connect to " + p.Addr()}, tried)
	require.Equal(t, "no answer within 300ms", failed[tried[0]])
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	err := w.report(canceled, func(a admin.Attempt) { require.Fail(t, a.What) })
	require.ErrorIs(t, err, admin.ErrInterrupted)
	require.NoError(t, p.Heal())
}

func TestFullEtcdGrantsNoLease(t *testing.T) {
	t.Parallel()
	w := newTried(t, localetcd.Options{QuotaBackendBytes: 4 << 20})
	w.Fill()
	_, _, failed := w.try(t.Context())
	require.Len(t, failed, 1)
	require.Contains(t, failed[lease], "database space exceeded")
}
