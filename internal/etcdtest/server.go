package etcdtest

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Guard enables authentication. user gets a role of the same name, with the permission to
// read and write under the prefixes only, and no password if it is "". Client becomes that
// of root, whose password is "root".
func (e *Etcd) Guard(user, password string, prefixes ...string) {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	for name, password := range map[string]string{"root": "root", user: password} {
		_, err := e.Client.UserAddWithOptions(ctx, name, password, &clientv3.UserAddOptions{NoPassword: password == ""})
		require.NoError(e.t, err)
		_, err = e.Client.RoleAdd(ctx, name)
		require.NoError(e.t, err)
		_, err = e.Client.UserGrantRole(ctx, name, name)
		require.NoError(e.t, err)
	}
	for _, prefix := range prefixes {
		_, err := e.Client.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
		require.NoError(e.t, err)
	}
	_, err := e.Client.AuthEnable(ctx)
	require.NoError(e.t, err)
	e.Client = e.Connect(func(c *clientv3.Config) { c.Username, c.Password = "root", "root" })
}

// Fill writes until etcd raises its NOSPACE alarm, which takes longer with a larger quota.
// The function that it returns frees the space and disarms the alarm, as an operator does.
func (e *Etcd) Fill() (free func()) {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	var err error
	for i := 0; err == nil; i++ {
		_, err = e.Client.Put(ctx, fmt.Sprintf("/filler/%d", i), strings.Repeat("x", 256<<10))
	}
	require.ErrorIs(e.t, err, rpctypes.ErrNoSpace)
	return e.free
}

func (e *Etcd) free() {
	e.t.Helper()
	ctx, cancel := e.context()
	defer cancel()
	deleted, err := e.Client.Delete(ctx, "/filler/", clientv3.WithPrefix())
	require.NoError(e.t, err)
	_, err = e.Client.Compact(ctx, deleted.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(e.t, err)
	for _, endpoint := range e.Client.Endpoints() {
		_, err = e.Client.Defragment(ctx, endpoint)
		require.NoError(e.t, err)
	}
	_, err = e.Client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	require.NoError(e.t, err)
}
