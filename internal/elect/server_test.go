package elect

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// Without space no lease is granted: no leader, few words, and no end of trying.
func TestNoSpaceAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	var err error
	for err == nil {
		_, err = w.direct.Put(w.ctx(), "/filler", strings.Repeat("x", 256<<10))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	r := w.run(newClient(t, w.cluster.Addr(0)), "r", quick)
	took := w.eventually("tried again", func() bool { return r.log.count(repeated) >= 3 })
	require.Greater(t, took, 650*time.Millisecond, "with growing pauses")
	require.False(t, r.Leader())
	require.Equal(t, 1, r.log.count(warned))
	w.makeRoom()
	w.leads(r)
}

func (w *world) makeRoom() {
	w.t.Helper()
	resp, err := w.direct.Delete(w.ctx(), "/filler")
	require.NoError(w.t, err)
	_, err = w.direct.Compact(w.ctx(), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(w.t, err)
	_, err = w.direct.Defragment(w.ctx(), w.cluster.Endpoints()[0])
	require.NoError(w.t, err)
	_, err = w.direct.AlarmDisarm(w.ctx(), &clientv3.AlarmMember{})
	require.NoError(w.t, err)
}

// At full quota a leader goes on to lead, and can hand over to one that waits.
func TestNoSpaceWhileLeading(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	a := w.run(newClient(t, w.cluster.Addr(0)), "a", quick)
	w.leads(a)
	b := w.run(newClient(t, w.cluster.Addr(0)), "b", quick)
	w.waits(b)
	var err error
	for err == nil {
		_, err = w.direct.Put(w.ctx(), "/filler", strings.Repeat("x", 256<<10))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	w.throughout(quick, "still leading", a.Leader)
	a.stop(t)
	require.Less(t, w.leads(b), time.Second)
}

// A role for the election's keys alone suffices, and tokens that expire between
// any two requests cost neither the leader its term nor the next its turn.
func TestAuthWithNarrowRoleAndShortTokens(t *testing.T) {
	t.Parallel()
	const tokenTTL = 2 * time.Second
	w := newWorld(t, localetcd.Options{AuthTokenTTL: tokenTTL})
	w.guard()
	as := func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" }
	a := w.run(newClient(t, w.cluster.Addr(0), as), "a", slow)
	w.leads(a)
	old := newClient(t, w.cluster.Addr(0), as) // has a watch stream whose token expires
	old.Watch(w.ctx(), key+"/x")
	inA := w.keyOf(a)
	w.throughout(2*tokenTTL, "tokens expire", a.Leader)
	b := w.run(old, "b", slow)
	w.waits(b)
	inB := w.keyOf(b)
	w.throughout(7*tokenTTL/2, "one term", func() bool { return a.Leader() && !b.Leader() })
	require.Equal(t, inA, w.keyOf(a))
	require.Equal(t, inB, w.keyOf(b))
	a.stop(t)
	require.Empty(t, w.keyOf(a))
	require.Less(t, w.leads(b), time.Second)
}

// guard turns authentication on, with a user for the election and nothing else.
func (w *world) guard() {
	w.t.Helper()
	for _, user := range []string{"root", "unlocker"} {
		_, err := w.direct.RoleAdd(w.ctx(), user)
		require.NoError(w.t, err)
		_, err = w.direct.UserAdd(w.ctx(), user, "pw")
		require.NoError(w.t, err)
		_, err = w.direct.UserGrantRole(w.ctx(), user, user)
		require.NoError(w.t, err)
	}
	_, err := w.direct.RoleGrantPermission(w.ctx(), "unlocker", key+"/", clientv3.GetPrefixRangeEnd(key+"/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(w.t, err)
	_, err = w.direct.AuthEnable(w.ctx())
	require.NoError(w.t, err)
	w.direct = newClient(w.t, w.cluster.Addr(0), func(c *clientv3.Config) { c.Username, c.Password = "root", "pw" })
}
