//go:build hunt

package hunt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// root is the user, its role and its password.
const root = "root"

// cluster is an etcd whose members are processes. A member keeps its addresses when it is
// killed or replaced. Faults on the same member must not overlap.
type cluster struct {
	t       *testing.T
	clients *etcdtest.Etcd // connects clients, and has no servers
	members []*member
	// user is whom clients log in as, and its password; "" if etcd has no users.
	user string
}

// newCluster runs the members until the test ends. violate is called if one ends by itself.
func newCluster(t *testing.T, violate func(format string, args ...any)) *cluster {
	t.Helper()
	c := &cluster{t: t, clients: etcdtest.On(t, nil)}
	c.clients.Cluster = &localetcd.Cluster{}
	dir := t.TempDir()
	var initial []string
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		m := &member{Name: name, Dir: filepath.Join(dir, name), Client: etcdtest.FreeAddr(t), Peer: etcdtest.FreeAddr(t), violate: violate}
		c.members = append(c.members, m)
		initial = append(initial, name+"="+m.peerURL())
	}
	t.Cleanup(func() {
		require.NoError(t, c.clients.Close())
		for _, m := range c.members {
			if m.process != nil {
				m.kill()
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Soon)
	defer cancel()
	for _, m := range c.members {
		m.Initial = strings.Join(initial, ",")
	}
	require.NoError(t, c.restart(ctx, 0, 1, 2))
	return c
}

func (c *cluster) endpoints() (all []string) {
	for _, m := range c.members {
		all = append(all, "http://"+m.Client)
	}
	return all
}

// proxy runs a proxy to a member until the test ends.
func (c *cluster) proxy(i int) *localetcd.Proxy {
	c.t.Helper()
	p, err := localetcd.NewProxy(c.members[i].Client)
	require.NoError(c.t, err)
	c.t.Cleanup(p.Close)
	return p
}

// connect returns a client, which is closed when the test ends.
func (c *cluster) connect(endpoints []string) *clientv3.Client {
	return c.clients.Connect(func(config *clientv3.Config) {
		config.Endpoints, config.Username, config.Password = endpoints, c.user, c.user
	})
}

// guard enables authentication.
func (c *cluster) guard() {
	client := c.connect(c.endpoints())
	_, err := client.UserAdd(c.t.Context(), root, root)
	require.NoError(c.t, err)
	_, err = client.RoleAdd(c.t.Context(), root)
	require.NoError(c.t, err)
	_, err = client.UserGrantRole(c.t.Context(), root, root)
	require.NoError(c.t, err)
	_, err = client.AuthEnable(c.t.Context())
	require.NoError(c.t, err)
	c.user = root
}

// restart starts dead members, and waits until they serve. Of two dead members both must be
// started together, since neither becomes ready without the other.
func (c *cluster) restart(ctx context.Context, down ...int) error {
	for _, i := range down {
		if err := c.members[i].start(); err != nil {
			return err
		}
	}
	for _, i := range down {
		if err := c.members[i].wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// replace removes a dead member from the cluster and starts an empty one with its addresses.
// clients has one client for each member.
func (c *cluster) replace(ctx context.Context, i int, clients []*clientv3.Client) error {
	m := c.members[i]
	for j, client := range clients {
		// The new member can ask any of the others for the list of members.
		if j == i {
			continue
		}
		if err := m.register(ctx, client); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(m.Dir); err != nil {
		return err
	}
	m.Existing = true
	return c.restart(ctx, i)
}

// register replaces a dead member by a new one with its address in the list of members, and
// returns when the member to which the client is connected has that list.
func (m *member) register(ctx context.Context, client *clientv3.Client) error {
	for {
		registered, err := m.tryRegister(ctx, client)
		if registered {
			return nil
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("member %s is not replaced: %w", m.Name, err)
		}
	}
}

// tryRegister does the next step, and reports whether there was none.
func (m *member) tryRegister(ctx context.Context, client *clientv3.Client) (registered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(list.Members, func(o *pb.Member) bool { return o.PeerURLs[0] == m.peerURL() })
	switch {
	case at < 0:
		_, err = client.MemberAdd(ctx, []string{m.peerURL()})
	case list.Members[at].ID == m.id:
		_, err = client.MemberRemove(ctx, m.id)
	default:
		return true, nil
	}
	return false, err
}

// leader returns the number of the leading member, or -1. clients has one client for each member.
func leader(ctx context.Context, clients []*clientv3.Client) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for i, client := range clients {
		if s, err := maintenance(client).Status(ctx, &pb.StatusRequest{}); err == nil && s.Header.MemberId == s.Leader {
			return i
		}
	}
	return -1
}

// maintenance returns a client on the connection of another.
func maintenance(client *clientv3.Client) pb.MaintenanceClient {
	return pb.NewMaintenanceClient(client.ActiveConnection())
}

// A leader that is cut off cannot write, and the others can. A replaced member has another id and
// all data.
func TestMembersAreCutOffAndReplaced(t *testing.T) {
	c := newCluster(t, t.Errorf)
	var clients []*clientv3.Client
	for i := range members {
		clients = append(clients, c.connect(c.endpoints()[i:i+1]))
	}
	put := func(i int) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := clients[i].Put(ctx, "key", "")
			return err == nil
		}
	}
	old := -1
	etcdtest.Eventually(t, func() bool {
		old = leader(t.Context(), clients)
		return old >= 0
	})
	c.members[old].tell(cutLine)
	// The member reads the line when it likes. The others elect a leader once it has.
	others := slices.Delete(slices.Clone(clients), old, old+1)
	etcdtest.Eventually(t, func() bool { return leader(t.Context(), others) >= 0 })
	etcdtest.Eventually(t, put((old+1)%members))
	require.False(t, put(old)())
	c.members[old].tell(mendLine)
	etcdtest.Eventually(t, put(old))

	id := c.members[old].id
	c.members[old].kill()
	require.NoError(t, c.replace(t.Context(), old, clients))
	require.NotEqual(t, id, c.members[old].id)
	got, err := clients[old].Get(t.Context(), "key")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
}
