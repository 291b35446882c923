// Package etcdtest is what tests, benchmarks and the hunt share around
// internal/localetcd: an etcd of their own, clients and proxies to it, locks of
// protocol 1, waits for conditions, and readers of logs and metrics.
//
// Guaranteed: what a test starts here ends with the test, and every error here fails the
// test. A wait ends as soon as its condition holds, so that only a failing test waits
// until the deadline.
//
// Not guaranteed: that a lock is free. Locks are written unconditionally, without the
// compare of a client.
package etcdtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// Etcd is an etcd and a client of it, for one test. Its methods fail the test on an error
// and must be called from its goroutine.
type Etcd struct {
	// Cluster has the servers; nil if the caller of On runs them.
	*localetcd.Cluster
	// Client is connected to the servers directly, not through a proxy. Guard replaces it.
	Client *clientv3.Client
	// Prefix is the prefix of the locks that the methods write and read. It ends with a
	// slash.
	Prefix string

	t testing.TB
}

// locks is the prefix of an Etcd that no other test uses.
const locks = "/mutexes/"

// Start runs a cluster without fsync until the test ends. Its locks are under /mutexes/.
func Start(t testing.TB, o localetcd.Options) *Etcd {
	t.Helper()
	cluster, err := start(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	e := &Etcd{Cluster: cluster, Prefix: locks, t: t}
	e.Client = e.Connect()
	return e
}

// FreeAddr returns a loopback address with a free port, for a server in another process.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := localetcd.FreeAddr()
	require.NoError(t, err)
	return addr
}

func start(o localetcd.Options) (*localetcd.Cluster, error) {
	o.UnsafeNoFsync = true
	ctx, cancel := context.WithTimeout(context.Background(), Soon)
	defer cancel()
	return localetcd.Start(ctx, o)
}

// On returns the Etcd of a client that the caller closes, and whose servers the caller
// runs. Its locks are under /mutexes/.
func On(t testing.TB, client *clientv3.Client) *Etcd {
	return &Etcd{Client: client, Prefix: locks, t: t}
}

// Shared is one etcd for all tests of a package that neither damage nor reconfigure it.
// The zero value is ready for use.
type Shared struct {
	once    sync.Once
	cluster *localetcd.Cluster
	client  *clientv3.Client
	err     error
	tests   atomic.Int64
}

// Start returns the shared etcd with a prefix that no other test has. The first call
// starts the server.
func (s *Shared) Start(t testing.TB) *Etcd {
	t.Helper()
	s.once.Do(func() {
		if s.cluster, s.err = start(localetcd.Options{}); s.err == nil {
			s.client, s.err = s.cluster.Client()
		}
	})
	require.NoError(t, s.err)
	return &Etcd{Cluster: s.cluster, Client: s.client, Prefix: fmt.Sprintf("/%s %d/", t.Name(), s.tests.Add(1)), t: t}
}

// Close stops the server if a test has started it. Pass it to Main.
func (s *Shared) Close() error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Close()
}

// Connect returns another client of all members, which is closed when the test ends. It
// reconnects within 300 ms after a fault. The edits can change its configuration.
func (e *Etcd) Connect(edits ...func(*clientv3.Config)) *clientv3.Client {
	e.t.Helper()
	quick := func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 300 * time.Millisecond},
			MinConnectTimeout: 500 * time.Millisecond,
		}))
	}
	client, err := e.Cluster.Client(append([]func(*clientv3.Config){quick}, edits...)...)
	require.NoError(e.t, err)
	return client
}

// Proxy runs a proxy to the client address of a member until the test ends.
func (e *Etcd) Proxy(member int) *localetcd.Proxy {
	e.t.Helper()
	p, err := localetcd.NewProxy(e.Addr(member))
	require.NoError(e.t, err)
	e.t.Cleanup(p.Close)
	return p
}

func (e *Etcd) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), Soon)
}

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
