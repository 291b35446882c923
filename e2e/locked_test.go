//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// access is the page whose commands these tests execute.
const access = "../docs/etcd-access.md"

// commands returns the lines of the block of the page with the name.
func commands(t *testing.T, name string) []string {
	t.Helper()
	page, err := os.ReadFile(access)
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n```sh " + name + "\n(.*?)\n```\n").FindSubmatch(page)
	require.NotNil(t, block, "%s has no block %q", access, name)
	return strings.Split(string(block[1]), "\n")
}

// lockedEtcd is an etcd that requires client certificates, with an etcdctl for root.
type lockedEtcd struct {
	*server
	pki
	etcdctl string
}

func startLockedEtcd(t *testing.T, version string) *lockedEtcd {
	t.Helper()
	plain := startEtcd(t, version) // for its binary
	plain.kill()
	l := &lockedEtcd{server: plain, pki: newPKI(t), etcdctl: buildEtcdTool(t, "etcdctl")}
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{l.addr}, TLS: l.config(t, "root"), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	l.client, l.dir = root, t.TempDir()
	for name, content := range map[string]string{"password": "secret\n", "root-password": "root secret\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(l.files, name), []byte(content), 0o600))
	}
	cert, key := l.issue(t, "server")
	l.process = start(t, l.binary, "--name", "e2e", "--data-dir", l.dir, "--log-level", "panic",
		"--client-cert-auth", "--trusted-ca-file", l.ca, "--cert-file", cert, "--key-file", key,
		"--listen-client-urls", "https://"+l.addr, "--advertise-client-urls", "https://"+l.addr,
		"--listen-peer-urls", "http://"+l.peer, "--initial-advertise-peer-urls", "http://"+l.peer,
		"--initial-cluster", "e2e=http://"+l.peer, "--bcrypt-cost", "4", "--auth-token-ttl", "1")
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.client.Get(ctx, "ready")
		return err == nil
	}, soon, poll)
	return l
}

// execute runs the commands of the page as root.
func (l *lockedEtcd) execute(lines ...string) {
	l.t.Helper()
	cert, key := l.issue(l.t, "root")
	cmd := exec.CommandContext(l.t.Context(), "bash", "-euo", "pipefail", "-c", strings.Join(lines, "\n"))
	cmd.Dir = l.files
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(l.etcdctl)+":"+os.Getenv("PATH"), "ETCDCTL_ENDPOINTS=https://"+l.addr,
		"ETCDCTL_CACERT="+l.ca, "ETCDCTL_CERT="+cert, "ETCDCTL_KEY="+key, "ETCDCTL_DIAL_TIMEOUT=1m", "ETCDCTL_COMMAND_TIMEOUT=1m")
	out, err := cmd.CombinedOutput()
	require.NoError(l.t, err, "%s\n%s", strings.Join(lines, "\n"), out)
}

// flags returns those of a daemon that authenticates by "certificate" or "password".
func (l *lockedEtcd) flags(method string) []string {
	l.t.Helper()
	flags := []string{"--etcd-tls-ca-file", l.ca, "--reaper-orphan-grace", "1s", "--resync-interval", "1s", "--reaper-standby-delay", "1s"}
	cert, key := l.issue(l.t, "unlocker")
	if method == "password" {
		cert, key = l.issue(l.t, "stranger")
		flags = append(flags, "--etcd-username", "unlocker", "--etcd-password-file", filepath.Join(l.files, "password"))
	}
	return append(flags, "--etcd-tls-cert-file", cert, "--etcd-tls-key-file", key)
}

func (l *lockedEtcd) daemon(method string) *daemon {
	l.t.Helper()
	// An etcd that a busy machine slows down must not cause a warning.
	return startDaemon(l.t, l.addr, slices.Concat(l.flags(method), patient, []string{"--reaper-freshness", "10s"})...)
}

// check runs config check --connect as the daemon's user.
func (l *lockedEtcd) check(method string) (out string, err error) {
	l.t.Helper()
	args := slices.Concat([]string{"config", "check", "--connect", "--etcd-endpoints", l.addr}, l.flags(method), patient)
	text, err := exec.CommandContext(l.t.Context(), unlocker, args...).CombinedOutput()
	return string(text), err
}

// buildEtcdTool builds etcdctl or etcdutl as etcd.sh builds the server.
func buildEtcdTool(t *testing.T, name string) (path string) {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	path = filepath.Join(cache, "unlocker-e2e", name+"-"+newest, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", `go mod init e2e.test/tool
		go get -tool go.etcd.io/etcd/$NAME/v3@v$VERSION
		go build -trimpath -o "$BINARY.$$" go.etcd.io/etcd/$NAME/v3
		mv "$BINARY.$$" "$BINARY"`)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOWORK=off", "CGO_ENABLED=0", "NAME="+name, "VERSION="+newest, "BINARY="+path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	if out, err := cmd.CombinedOutput(); err != nil {
		missing(t, "%s cannot be built: %v\n%s", name, err, out)
	}
	return path
}

// The role of the page is sufficient for everything that the daemon does, with a user of
// either kind.
func TestLockedDown(t *testing.T) {
	t.Parallel()
	for _, version := range supported() {
		for _, method := range []string{"certificate", "password"} {
			t.Run(version+" "+method, func(t *testing.T) {
				l := startLockedEtcd(t, version)
				for _, block := range []string{"role", method, "enable"} {
					l.execute(commands(t, block)...)
				}
				later := time.Now().Add(time.Hour)
				l.putLocks("held", 100, later, later)
				out, err := l.check(method)
				require.NoError(t, err, out)
				require.NotContains(t, out, "FAILED")
				require.Contains(t, out, "\nok      delete below /mutexes/: permitted, nothing changed\n")
				d := l.daemon(method)
				l.requireWorking(d)
				require.Equal(t, float64(l.end.Unix()), d.metric("unlocker_certificate_expiry_timestamp_seconds", "certificate", "etcd_ca"))
				require.Equal(t, float64(l.end.Unix()), d.metric("unlocker_certificate_expiry_timestamp_seconds", "certificate", "etcd_client"))
				require.Empty(t, d.warnings())
				l.requirePeople(d)
			})
		}
	}
}

// requireWorking makes the daemon do everything that it does in etcd.
func (l *lockedEtcd) requireWorking(d *daemon) {
	l.t.Helper()
	d.awaitMetric(1, "unlocker_etcd_up")
	d.awaitMetric(1, "unlocker_leader")
	d.awaitMetric(0, "unlocker_reaper_hold")
	held, _ := l.keys("held")
	require.Equal(l.t, float64(held/fieldsOfALock), d.metric("unlocker_locks", "state", "held"))
	due := time.Now().Add(2 * time.Second)
	l.putLocks("due", 20, due, due)
	ctx, cancel := context.WithTimeout(l.t.Context(), soon)
	defer cancel()
	_, err := l.client.Put(ctx, prefix+"orphan/auto_unlock_at", "1700000000")
	require.NoError(l.t, err)
	began := float64(time.Now().Unix())
	l.awaitGone("due/")
	l.awaitGone("orphan/")
	d.awaitMetric(0, "unlocker_reaper_backlog")
	require.Eventually(l.t, func() bool { return d.metric("unlocker_last_resync_timestamp_seconds") > began+1 }, soon, poll)
	require.EqualValues(l.t, 1, d.metric("unlocker_forced_unlocks_total", "trigger", "orphan"))
	require.Zero(l.t, d.metric("unlocker_forced_unlock_failures_total"), "%v", d.warnings())
	require.Zero(l.t, d.metric("unlocker_resync_drift_total"))
	left, _ := l.keys("")
	require.Equal(l.t, held, left, "only locks that were due are removed")
}

// warnings returns the warnings and errors of the log, except those of holds.
func (d *daemon) warnings() (found []string) {
	for text := range strings.Lines(d.log.String()) {
		var line struct{ Level, Msg, Error string }
		if json.Unmarshal([]byte(text), &line) == nil && (line.Level == "WARN" || line.Level == "ERROR") &&
			!strings.HasPrefix(line.Msg, "hold begins") {
			found = append(found, line.Msg+": "+line.Error)
		}
	}
	return found
}

// Without one of the grants of the page the daemon logs once what is missing, and works as
// soon as it is granted.
func TestLockedDownWithoutALine(t *testing.T) {
	t.Parallel()
	const locks, election = "[/mutexes/, /mutexes0) (prefix /mutexes/)", "[/unlocker/leader/mutexes/, /unlocker/leader/mutexes0)"
	const needs, needsRecords = "needs readwrite on ", "needs read on [/unlocker/audit/mutexes/, /unlocker/audit/mutexes0)"
	const needsPauses = "needs read on [/unlocker/pause/mutexes/, /unlocker/pause/mutexes0)"
	const needsTickets = "needs read on [/unlocker/waiters/mutexes/, /unlocker/waiters/mutexes0)"
	wanted := map[string][]string{
		"etcdctl role grant-permission unlocker readwrite --prefix /mutexes/":                 {needs + locks},
		"etcdctl role grant-permission unlocker readwrite --prefix /unlocker/leader/mutexes/": {needs + election},
		"etcdctl role grant-permission unlocker readwrite --prefix /unlocker/audit/mutexes/":  {needsRecords},
		"etcdctl role grant-permission unlocker read --prefix /unlocker/pause/mutexes/":       {needsPauses},
		"etcdctl role grant-permission unlocker read --prefix /unlocker/waiters/mutexes/":     {needsTickets},
		"etcdctl user grant-role unlocker unlocker":                                           {needs + locks, needs + election, needsRecords, needsPauses, needsTickets},
	}
	lines := append(commands(t, "role"), commands(t, "certificate")...)
	for i, line := range lines {
		if strings.Contains(line, " add ") {
			continue // the next lines fail without it
		}
		t.Run(line, func(t *testing.T) {
			want := wanted[line]
			require.NotEmpty(t, want, "no warnings are defined for this line")
			l := startLockedEtcd(t, newest)
			l.execute(append(append([]string{}, lines[:i]...), lines[i+1:]...)...)
			l.execute(commands(t, "enable")...)
			out, err := l.check("certificate")
			require.Error(t, err)
			d := l.daemon("certificate")
			require.Eventually(t, func() bool { return len(d.warnings()) >= len(want) }, soon, poll)
			began := time.Now()
			require.Eventually(t, func() bool { return time.Since(began) > 3*time.Second }, soon, poll)
			warnings := d.warnings()
			require.Len(t, warnings, len(want), "each warning is logged once")
			for _, text := range want {
				require.Contains(t, fmt.Sprint(warnings), text)
				require.Contains(t, out, text)
			}
			status, body := d.get("/readyz")
			switch {
			case strings.Contains(want[0], locks):
				require.Equal(t, 503, status)
				require.Contains(t, body, want[0])
				require.Zero(t, d.metric("unlocker_etcd_up"))
			case want[0] == needsPauses:
				require.Equal(t, 503, status)
				require.Contains(t, body, want[0])
				require.EqualValues(t, 1, d.metric("unlocker_reaper_hold", "reason", "disconnected"))
			case strings.Contains(want[0], election):
				require.Equal(t, 200, status)
				require.Zero(t, d.metric("unlocker_leader"))
			default:
				require.Equal(t, 200, status)
				d.awaitMetric(1, "unlocker_leader")
			}
			l.execute(line)
			l.requireWorking(d)
		})
	}
}

// pki issues certificates that all expire at end.
type pki struct {
	files, ca string
	end       time.Time
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

func newPKI(t *testing.T) pki {
	t.Helper()
	p := pki{files: t.TempDir(), end: time.Now().Add(24 * time.Hour).Truncate(time.Second)}
	template := p.template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	var err error
	p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &p.key.PublicKey, p.key)
	require.NoError(t, err)
	p.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	p.ca = p.write(t, "ca.pem", "CERTIFICATE", der)
	return p
}

func (p pki) template(commonName string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: commonName},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     p.end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue returns the paths of a pair. For the same name it returns the same pair.
func (p pki) issue(t *testing.T, commonName string) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(p.files, commonName+".pem"), filepath.Join(p.files, commonName+"-key.pem")
	if _, err := os.Stat(key); err == nil {
		return cert, key
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, p.template(commonName), p.cert, &private.PublicKey, p.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	p.write(t, filepath.Base(cert), "CERTIFICATE", der)
	p.write(t, filepath.Base(key), "EC PRIVATE KEY", keyDER)
	return cert, key
}

func (p pki) config(t *testing.T, commonName string) *tls.Config {
	t.Helper()
	cert, key := p.issue(t, commonName)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(p.cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func (p pki) write(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(p.files, name)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}
