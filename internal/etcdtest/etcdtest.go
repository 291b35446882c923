// Package etcdtest is what tests, benchmarks and the hunt share around
// internal/localetcd: an etcd of their own, clients and proxies to it, locks of
// protocol 1, waits for conditions, and readers of logs and metrics.
//
// Guaranteed: what a test starts here ends with the test, and whatever fails here fails
// the test. A wait ends as soon as its condition holds, so only a test that fails pays
// for the deadline.
//
// Not guaranteed: that a lock is free. Locks are written as they are given, without the
// compare that a client makes.
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

// Etcd is an etcd and a client of it, for one test. Its methods fail the test and are
// called from its goroutine.
type Etcd struct {
	// Cluster has the servers, nil where somebody else runs them.
	*localetcd.Cluster
	// Client is connected to the servers directly, past any proxy. Guard replaces it.
	Client *clientv3.Client
	// Prefix is that of the locks which the methods write and read, and ends with a slash.
	Prefix string

	t testing.TB
}

// locks is where an Etcd has its locks, if it shares its server with no other test.
const locks = "/mutexes/"

// Start runs a cluster without fsync until the test ends, with locks below /mutexes/.
func Start(t testing.TB, o localetcd.Options) *Etcd {
	t.Helper()
	cluster, err := start(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	e := &Etcd{Cluster: cluster, Prefix: locks, t: t}
	e.Client = e.Connect()
	return e
}

func start(o localetcd.Options) (*localetcd.Cluster, error) {
	o.UnsafeNoFsync = true
	ctx, cancel := context.WithTimeout(context.Background(), Soon)
	defer cancel()
	return localetcd.Start(ctx, o)
}

// On returns the Etcd of a client whose servers are run, and which is closed, by
// somebody else. Its locks are below /mutexes/.
func On(t testing.TB, client *clientv3.Client) *Etcd {
	return &Etcd{Client: client, Prefix: locks, t: t}
}

// Shared is one etcd for all tests of a package that neither harm nor reconfigure it.
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

// Close stops the server, if any test has started it. Main calls it after the tests.
func (s *Shared) Close() error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Close()
}

// Connect returns another client of all members, which is closed when the test ends. It
// reconnects within 300 ms of a fault. Each edit may change its configuration first.
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
