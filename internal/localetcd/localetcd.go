// Package localetcd runs etcd inside the process: one or three real members on the
// loopback interface, with the faults the demo, the tests and the benchmarks need.
//
// Guaranteed: a member keeps its client address and its peer address for the life of
// the cluster, through Kill, Wipe and Revert; Close ends every server, client and
// temporary directory the cluster made.
//
// Not guaranteed: a crash as the kernel makes it. Kill tears connections and listeners
// down without a word to clients or peers, but what etcd wrote to its files stays
// written. Ports are chosen free and may in theory be taken by another program while
// a member is down.
//
// The package links the etcd server and the testing package: it is never part of the
// unlocker binary.
package localetcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// startTimeout bounds ForTest: a loaded machine may need seconds for
// what takes an idle one 300 ms.
const startTimeout = time.Minute

// Options describes a cluster. The zero value is one member in a temporary directory
// with etcd's own defaults.
type Options struct {
	// Members is 1 (or 0) or 3.
	Members int
	// Dir holds the data and is kept; empty means a temporary one, removed by Close.
	Dir string
	// TLS makes the client endpoints speak https and demand a client certificate when
	// a CAFile is set. Peers always speak plain http.
	TLS TLS
	// QuotaBackendBytes is the size at which the NOSPACE alarm is raised; 0 is etcd's 2 GiB.
	QuotaBackendBytes int64
	// MaxTxnOps and MaxRequestBytes are etcd's limits; 0 means 128 and 1.5 MiB.
	MaxTxnOps, MaxRequestBytes uint
	// AuthTokenTTL is the life of a simple auth token, in whole seconds; 0 is 300 s.
	AuthTokenTTL time.Duration
	// AuthToken is etcd's --auth-token; "" is "simple". Its other kind, jwt, has tokens
	// that end after their time however much they are used.
	AuthToken string
	// ProgressInterval is the server's own progress notice for WithProgressNotify
	// watches; 0 is ten minutes.
	ProgressInterval time.Duration
	// Tick and Election are raft's heartbeat and election timeout; 0 is 100 ms and 1 s.
	// Election must be at least five ticks.
	Tick, Election time.Duration
	// UnsafeNoFsync skips fsync: for tests, never for measurements.
	UnsafeNoFsync bool
	// Logger gets the servers' log; nil keeps them quiet but for what ends the process.
	Logger *zap.Logger
}

// TLS names the server's PEM files.
type TLS struct{ CertFile, KeyFile, CAFile string }

// Cluster is a running set of members. Its methods may be called from several
// goroutines, but faults on one member must not overlap.
type Cluster struct {
	members []*member
	tempDir string

	mu      sync.Mutex
	clients []*clientv3.Client
}

// Start runs the members and returns when every one of them is ready to serve, or with
// an error when ctx ends first; then nothing is left running.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Members == 0 {
		o.Members = 1
	}
	if o.Members != 1 && o.Members != 3 {
		return nil, fmt.Errorf("localetcd: members must be 1 or 3, not %d", o.Members)
	}
	c := &Cluster{}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "localetcd-")
		if err != nil {
			return nil, fmt.Errorf("localetcd: %w", err)
		}
		c.tempDir, o.Dir = dir, dir
	}
	err := c.build(o)
	if err == nil {
		err = c.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ForTest starts a cluster without fsync, fails the test when it cannot, and closes the
// cluster when the test ends.
func ForTest(t testing.TB, o Options) *Cluster {
	t.Helper()
	o.UnsafeNoFsync = true
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := Start(ctx, o)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close etcd: %v", err)
		}
	})
	return c
}

func (c *Cluster) build(o Options) error {
	addrs, err := freeAddrs(2 * o.Members)
	if err != nil {
		return err
	}
	for i := range o.Members {
		c.members = append(c.members, &member{
			name:   fmt.Sprintf("m%d", i),
			dir:    filepath.Join(o.Dir, fmt.Sprintf("m%d", i)),
			client: addrs[2*i],
			peer:   addrs[2*i+1],
			opts:   o,
		})
	}
	for _, m := range c.members {
		m.all = c.members
	}
	return nil
}

// Endpoints are the members' client URLs, in order, running or not.
func (c *Cluster) Endpoints() []string {
	urls := make([]string, 0, len(c.members))
	for _, m := range c.members {
		urls = append(urls, m.clientURL().String())
	}
	return urls
}

// Addr is host:port of member i's client listener, as a Proxy wants it.
func (c *Cluster) Addr(i int) string { return c.members[i].client }

// Client returns a plain clientv3 client of all members, closed with the cluster. Each
// edit may change the configuration first (endpoints, TLS, user). It does not wait for
// etcd, and its calls have no deadline but the caller's.
func (c *Cluster) Client(edits ...func(*clientv3.Config)) (*clientv3.Client, error) {
	cfg := clientv3.Config{Endpoints: c.Endpoints(), DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
	for _, edit := range edits {
		edit(&cfg)
	}
	cli, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("localetcd: client: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, cli)
	return cli, nil
}

// Close ends clients and servers and removes the temporary directory. It may be called
// more than once.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cli := range c.clients {
		_ = cli.Close() // a client a test has closed already says "context canceled"
	}
	c.clients = nil
	for _, m := range c.members {
		m.kill()
	}
	if c.tempDir == "" {
		return nil
	}
	return os.RemoveAll(c.tempDir)
}
