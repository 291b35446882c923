package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

func (e etcd) session() *concurrency.Session {
	e.t.Helper()
	s, err := concurrency.NewSession(e.Client)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestListNative(t *testing.T) {
	e := newEtcd(t)
	code, stdout, stderr := e.call(nil, "list", "--native", "--native-prefixes=/locks/,/none/")
	require.Equal(t, exitOK, code)
	require.Empty(t, stdout)
	require.Equal(t, "no native locks under /locks/\nno native locks under /none/\n", stderr)

	holder, leader := e.session(), e.session()
	require.NoError(t, concurrency.NewMutex(holder, "/locks/deploy").Lock(t.Context()))
	require.NoError(t, concurrency.NewElection(leader, "/locks/leader").Campaign(t.Context(), "host-1\x1b[2J"))
	waiter := fmt.Sprintf("/locks/deploy/%x", leader.Lease())
	_, err := e.Client.Put(t.Context(), waiter, "", clientv3.WithLease(leader.Lease()))
	require.NoError(t, err)
	e.Put(clientv3.OpPut("/locks/blocked/x", ""), clientv3.OpPut("/other/x/y", ""))
	e.Put(clientv3.OpPut("/locks/blocked/1f", "by hand"))

	list := []string{"list", "--native", "--native-prefixes=/locks/,/none/,/other/"}
	code, stdout, stderr = e.call(nil, list...)
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "no native locks under /none/\nno native locks under /other/: its 1 keys are not named NAME/LEASE\n", stderr)
	line := `%s +%s +%x +\d\ds of 60s +\d+ +%s\n`
	require.Regexp(t, `^NAME +ROLE +LEASE +TTL +TOKEN +VALUE\n`+
		fmt.Sprintf(line, "/locks/deploy", "holder", holder.Lease(), "-")+
		fmt.Sprintf(line, "/locks/deploy", "waiter 1", leader.Lease(), "-")+
		fmt.Sprintf(line, "/locks/leader", "holder", leader.Lease(), `"host-1\\x1b\[2J"`)+
		`/locks/blocked +blocked by /locks/blocked/x +0 +lease none +\d+ +-\n/locks/blocked +waiter 1 +0 +lease none +\d+ +by hand\n$`, stdout)

	_, stdout, _ = e.call(nil, append(list, "-o=name")...)
	require.Equal(t, "/locks/deploy\n/locks/leader\n/locks/blocked\n", stdout)
	_, stdout, _ = e.call(nil, append(list, "--no-headers", "-o=wide")...)
	require.Regexp(t, `^/locks/deploy +holder `, stdout)
	_, stdout, _ = e.call(nil, append(list, "-o=jsonpath={.prefixes[0].holders[*].name}")...)
	require.Equal(t, "/locks/deploy /locks/leader /locks/blocked", stdout)
	_, stdout, _ = e.call(nil, append(list, "-o=json")...)
	var decoded api.NativeList
	require.NoError(t, json.Unmarshal([]byte(stdout), &decoded))
	require.Equal(t, "host-1\x1b[2J", decoded.Prefixes[0].Holders[1].Value)
	require.Equal(t, waiter, decoded.Prefixes[0].Holders[0].Waiters[0].Key)
	require.Zero(t, decoded.Prefixes[0].Holders[0].Since, "no daemon was asked")
}

func TestListNativeThatCannotRead(t *testing.T) {
	e := newEtcd(t)
	e.Put(clientv3.OpPut("/mine/a/1f", ""))
	e.Guard("ada", "secret", "/mine/")
	code, stdout, stderr := e.call(nil, "list", "--native", "--native-prefixes=/theirs/,/mine/", "--etcd-username=ada", "--etcd-password=secret", "-o=name")
	require.Equal(t, exitFailure, code)
	require.Equal(t, "/mine/a\n", stdout)
	require.Contains(t, stderr, `permission denied: user "ada" needs read on [/theirs/, /theirs0) (prefix /theirs/)`)
}
