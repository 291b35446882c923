//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/mutex"
)

// The role of the page for holders is sufficient for unlocker lock, and an etcd whose process
// stalls for some seconds costs no lock.
func TestLockedDownHolder(t *testing.T) {
	t.Parallel()
	for _, version := range supported() {
		for method, user := range map[string]string{"certificate": "--no-password", "password": "--interactive=false < password"} {
			t.Run(version+" "+method, func(t *testing.T) {
				l := startLockedEtcd(t, version)
				l.execute(append(commands(t, "holders"), "etcdctl user add unlocker "+user, "etcdctl user grant-role unlocker unlocker-holders")...)
				l.execute(commands(t, "enable")...)
				proceed := filepath.Join(t.TempDir(), "go")
				args := append([]string{"lock", "nightly", "--patience", "24s", "--etcd-endpoints", l.addr}, l.flags(method)...)
				p := start(t, unlocker, append(args, "--", "sh", "-c", "echo ready; until [ -e "+proceed+" ]; do sleep 0.1; done; exit 5")...)
				require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "ready") }, soon, poll)
				taken := l.aliveAt("nightly")
				l.suspend()
				<-time.After(9 * time.Second) // a renewal is due after 8 s
				l.resume()
				require.Eventually(t, func() bool { return l.aliveAt("nightly") > taken }, soon, poll)
				require.NoError(t, os.WriteFile(proceed, nil, 0o600))
				<-p.done
				require.Equal(t, 5, p.cmd.ProcessState.ExitCode(), p.log.String())
				l.awaitGone("nightly")
			})
		}
	}
}

// A program learns from the error of its lock what is wrong with its connection or its user.
func TestLockedDownProgram(t *testing.T) {
	t.Parallel()
	l := startLockedEtcd(t, newest)
	l.execute("etcdctl user add unlocker --no-password", "etcdctl user add billing --interactive=false < password")
	l.execute(commands(t, "enable")...)
	client, untrusting, stranger := l.config(t, "unlocker"), l.config(t, "unlocker"), l.config(t, "stranger")
	untrusting.RootCAs = x509.NewCertPool()
	for name, tt := range map[string]struct {
		config *tls.Config
		user   string
		kind   error
		text   string
	}{
		"without TLS": {nil, "", mutex.ErrUnreachable, "was unreachable: error reading server preface: .*: etcd may require TLS, or a client certificate$"},
		"authority":   {untrusting, "", mutex.ErrUnreachable, "was unreachable: authentication handshake failed: .*x509: certificate signed by unknown authority$"},
		"password":    {stranger, "billing", mutex.ErrUnreachable, "refused the login: etcdserver: authentication failed, invalid user ID or password$"},
		"role":        {client, "", rpctypes.ErrPermissionDenied, "etcdserver: permission denied$"},
	} {
		t.Run(name, func(t *testing.T) {
			etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{l.addr}, TLS: tt.config, Username: tt.user, Password: "secret", Logger: zap.NewNop()})
			require.NoError(t, err)
			defer func() { _ = etcd.Close() }()
			if tt.user != "" { // its token lives for a second
				l.execute("echo changed | etcdctl user passwd billing --interactive=false")
			}
			locks, err := mutex.New(etcd)
			require.NoError(t, err)
			require.Eventually(t, func() bool { // a busy machine may have no connection yet
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = locks.Lock(ctx, "nightly")
				text := strings.Replace(err.Error(), "etcd at "+l.addr+" ", "", 1)
				return errors.Is(err, tt.kind) && regexp.MustCompile(`^mutex: lock "nightly": `+tt.text).MatchString(text)
			}, soon, poll, "%v", err)
		})
	}
}

// aliveAt returns when a lock was last renewed, or "".
func (l *lockedEtcd) aliveAt(name string) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), soon)
	defer cancel()
	resp, err := l.client.Get(ctx, prefix+name+"/alive_at")
	require.NoError(l.t, err)
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}
