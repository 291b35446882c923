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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
