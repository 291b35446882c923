//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/crypto/bcrypt"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// check runs the plugin as Nagios does.
func check(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), unlocker, append([]string{"check"}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		require.Empty(t, string(exit.Stderr))
		return exit.ExitCode(), string(out)
	}
	require.NoError(t, err)
	return 0, string(out)
}

func awaitCheck(t *testing.T, code int, output string, args ...string) {
	t.Helper()
	var got string
	require.Eventually(t, func() bool {
		exit, out := check(t, args...)
		got = fmt.Sprintf("%d: %s", exit, out)
		return exit == code && strings.HasPrefix(out, output)
	}, soon, poll, "want %d: %s, got %v", code, output, &got)
}

// web returns the URL of the web listener.
func (d *daemon) web(scheme string) string {
	return scheme + "://" + d.line(api.LogStarted)["web"].(string)
}

// The plugin against two real replicas behind TLS and a password.
func TestCheckOfTwoReplicas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := webConfig(t, dir)
	etcd := startEtcd(t, newest)
	a := startDaemon(t, etcd.addr, "--web-web-config-file", config)
	b := startDaemon(t, etcd.addr, "--web-web-config-file", config)
	open := []string{"-v", "--ca-file", filepath.Join(dir, "cert.pem")}
	of := func(more ...string) []string {
		return slices.Concat(open, []string{"--username", "icinga", "--password-file", filepath.Join(dir, "password")}, more)
	}
	both := of("--url", a.web("https"), "--url", b.web("https"))
	awaitCheck(t, 0, "UNLOCKER OK: 0 locks, none overdue | overdue=0;0;;0 ", both...)

	code, out := check(t, append(open, "--url", a.web("https"))...)
	require.Equal(t, 2, code)
	require.Contains(t, out, "answers 401 Unauthorized")
	code, out = check(t, "--url", a.web("https"))
	require.Equal(t, 2, code)
	require.Contains(t, out, "certificate signed by unknown authority")

	// One of them removes the lock and both report it, which counts once.
	past := time.Now().Add(-time.Minute)
	etcd.putLocks("dead", 1, past, past)
	etcd.awaitGone("dead/")
	const forced = "UNLOCKER WARNING: 1 forced unlock in the last 1h00m: dead/00000 (worker-1.example.org, "
	awaitCheck(t, 1, forced, both...)
	require.Eventually(t, func() bool { // a slow answer of etcd is a problem of its own
		one, _ := check(t, of("--url", a.web("https"))...)
		other, _ := check(t, of("--url", b.web("https"))...)
		return one == 1 && other == 1
	}, soon, poll)
	both = append(both, "--forced-minutes", "0")
	awaitCheck(t, 0, "UNLOCKER OK: ", both...)

	// One hangs: the check ends in time with the answer of the other.
	b.suspend()
	begin := time.Now()
	code, out = check(t, append(both, "-t", "6")...)
	require.Less(t, time.Since(begin), 15*time.Second)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "UNLOCKER WARNING: "+b.web("https")+" does not answer within 6s; 0 locks, none overdue | ")
	b.resume()
	awaitCheck(t, 0, "UNLOCKER OK: ", both...)

	etcd.putLocks("late", 7, past, time.Now().Add(time.Hour))
	awaitCheck(t, 1, "UNLOCKER WARNING: 7 of 7 locks overdue: late/00000 (worker-1.example.org, ", both...)
	awaitCheck(t, 2, "UNLOCKER CRITICAL: 7 of 7 locks overdue: ", append(both, "-w", "5", "-c", "6")...)
	awaitCheck(t, 0, "UNLOCKER OK: 7 of 7 locks overdue: ", append(both, "-w", "10")...)
}

// Problems of the daemon take precedence over those of its locks.
func TestCheckOfADaemonInTrouble(t *testing.T) {
	t.Parallel()
	nowhere := startDaemon(t, etcdtest.FreeAddr(t))
	awaitCheck(t, 2, "UNLOCKER CRITICAL: no daemon reports on the locks: "+nowhere.web("http")+" has not listed the locks yet", "--url", nowhere.web("http"))

	etcd := startEtcd(t, newest)
	d := startDaemon(t, etcd.addr, "--reaper-settle", "10m")
	url := d.web("http")
	awaitCheck(t, 0, "UNLOCKER OK: 0 locks, none overdue; removals are on hold for ", "--url", url)

	maintenance := etcdserverpb.NewMaintenanceClient(etcd.client.ActiveConnection())
	alarm := &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE}
	_, err := maintenance.Alarm(t.Context(), alarm)
	require.NoError(t, err)
	awaitCheck(t, 2, "UNLOCKER CRITICAL: etcd raised NOSPACE: no holder can renew its lock; 0 locks, none overdue", "--url", url)
	awaitCheck(t, 0, "UNLOCKER OK: a is not held | held=0;;;0 age=0s;;;0 past_alert=0s;;;0 forced=0;0;;0\n", "--url", url, "--lock", "a")
	awaitCheck(t, 3, "UNLOCKER UNKNOWN: no daemon reports on the locks: "+url+" answers 400 Bad Request: ", "--url", url, "--lock", "a//b")

	etcd.kill()
	awaitCheck(t, 2, "UNLOCKER CRITICAL: no daemon reports on the locks: "+url+" cannot reach etcd", "--url", url)
	awaitCheck(t, 2, "UNLOCKER CRITICAL: no daemon reports on the locks: "+url+" cannot reach etcd", "--url", url, "--lock", "a")
	d.kill()
	awaitCheck(t, 2, "UNLOCKER CRITICAL: no daemon reports on the locks: "+url+" does not answer: dial tcp", "--url", url)
}

// webConfig writes a web configuration file, with a certificate and a password.
func webConfig(t *testing.T, dir string) string {
	t.Helper()
	const password = "hush"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"cert.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		"key.pem":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})),
		"password": password + "\n",
		"web.yml":  fmt.Sprintf("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {icinga: '%s'}\n", hash),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "web.yml")
}
