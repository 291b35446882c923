//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestProtocolTransactions feeds the transactions of docs/protocol.md to etcdctl.
func TestProtocolTransactions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/protocol.md")
	require.NoError(t, err)
	etcd, etcdctl := startEtcd(t, newest), buildEtcdTool(t, "etcdctl")
	txns := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)\n(?:[^#\n].*\n|\n)*?((?:    (?:version|value)\(.*\n)\n(?:    .*\n|\n)+)`).FindAllStringSubmatch(string(page), -1) {
		txns[m[1]] = regexp.MustCompile(`(?m)^    `).ReplaceAllString(m[2], "") + "\n\n"
	}
	require.Len(t, txns, 5)
	run := func(step, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		cmd := exec.CommandContext(ctx, etcdctl, "--endpoints", etcd.addr, "--command-timeout", "1m", "--dial-timeout", "1m", "txn")
		cmd.Stdin = strings.NewReader(txns[step])
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", txns[step], out)
		require.Equal(t, want, strings.Fields(string(out))[0], "%s\n%s", txns[step], out)
	}
	_, err = etcd.client.Put(t.Context(), prefix+"billing/invoices/nested/uuid", "other")
	require.NoError(t, err)
	for _, step := range []string{"Alive", "Stack", "Ask", "Unlock"} {
		run(step, "FAILURE")
	}
	run("Lock", "SUCCESS")
	run("Lock", "FAILURE")
	run("Alive", "SUCCESS")
	run("Stack", "SUCCESS")
	run("Ask", "SUCCESS")
	run("Unlock", "SUCCESS")
	run("Unlock", "FAILURE")
	left, err := etcd.client.Get(t.Context(), prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, left.Kvs, 1, "the nested lock")
}
