// Package localetcd runs etcd inside the process: one or three real members on the
// loopback interface, and the faults that the tests and the hunt inject.
//
// Guaranteed: a member keeps its client address and its peer address for the life of
// the cluster, through Kill, Wipe and Revert; Close ends every server and client and
// removes the temporary directory.
//
// Not guaranteed: a crash of the machine. Kill closes connections and listeners
// without notice to clients or peers, but what etcd wrote to its files stays
// written. Ports are chosen free and may be taken by another program while a member
// is down.
//
// The package links the etcd server: it is never part of the unlocker binary. What
// needs the testing package is in internal/etcdtest.
package localetcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Options describes a cluster. The zero value is one member in a temporary directory
// with etcd's own defaults, but for raft's timers: a single member elects itself within
// 100 ms instead of a second.
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
	// MaxTxnOps is how many operations etcd takes in a transaction; 0 means 128.
	MaxTxnOps uint
	// AuthTokenTTL is the life of a simple auth token, in whole seconds; 0 is 300 s.
	AuthTokenTTL time.Duration
	// AuthToken is etcd's --auth-token; "" is "simple". Its other kind, jwt, has tokens
	// that end after their time however much they are used.
	AuthToken string
	// UnsafeNoFsync skips fsync: for tests, never for measurements.
	UnsafeNoFsync bool
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
	err := c.startOn(ctx, o)
	for range addrRetries {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = c.startOn(ctx, o)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// addrRetries is how often Start takes other addresses where another program took one
// between the check that it is free and its use.
const addrRetries = 3

// startOn starts the members on free addresses. Members of an earlier attempt end first.
func (c *Cluster) startOn(ctx context.Context, o Options) error {
	for _, m := range c.members {
		m.kill()
		if c.tempDir != "" {
			if err := os.RemoveAll(m.dir); err != nil {
				return err
			}
		}
	}
	c.members = nil
	if err := c.build(o); err != nil {
		return err
	}
	return c.Restart(ctx)
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
