// Package localetcd runs etcd inside the process: one or three real members on the
// loopback interface, and the faults that the tests and the hunt inject.
//
// Guaranteed: a member keeps its client address and its peer address for the life of the
// cluster, including Kill, Wipe and Revert. Close ends all servers and clients, and removes
// the temporary directory.
//
// Not guaranteed: that Kill is like a crash of the machine. It closes connections and
// listeners without notice to clients or peers, but no write to the files is lost. While a
// member is down, a program that does not use this package may take its port.
//
// The package links the etcd server, and must not be linked into the unlocker binary. What
// needs the testing package is in internal/etcdtest.
package localetcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Options describes a cluster. The zero value is one member in a temporary directory. The defaults
// are those of etcd, except that a single member elects itself within 100 ms instead of a second.
type Options struct {
	// Members is 1 (or 0) or 3.
	Members int
	// Dir holds the data and is kept. If it is empty, the data is in a temporary directory
	// that Close removes.
	Dir string
	// TLS makes the client endpoints use https. Peers always use http.
	TLS transport.TLSInfo
	// QuotaBackendBytes is the size at which the NOSPACE alarm is raised; 0 means 2 GiB.
	QuotaBackendBytes int64
	// MaxTxnOps is the maximum number of operations in a transaction; 0 means 128.
	MaxTxnOps uint
	// AuthTokenTTL is the TTL of a simple auth token, in whole seconds; 0 means 300 s.
	AuthTokenTTL time.Duration
	// AuthToken is the flag --auth-token of etcd; "" means "simple". Use does not prolong
	// the tokens of the other kind, jwt.
	AuthToken string
	// UnsafeNoFsync skips fsync: for tests, never for measurements.
	UnsafeNoFsync bool
	// Server adds to the options of the gRPC server, which also executes the requests of the
	// JSON gateway.
	Server []grpc.ServerOption
}

// Cluster is a running set of members. Its methods may be called from several
// goroutines, but faults on one member must not overlap.
type Cluster struct {
	members []*member
	tempDir string

	mu      sync.Mutex
	clients []*clientv3.Client
}

// Start runs the members and returns when all of them are ready to serve. If ctx ends
// before, or a member fails, it stops them all and returns an error.
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

func (c *Cluster) build(o Options) (err error) {
	var initial []string
	for i := range o.Members {
		name := fmt.Sprintf("m%d", i)
		m := &member{name: name, dir: filepath.Join(o.Dir, name), opts: o}
		if m.client, err = FreeAddr(); err != nil {
			return err
		}
		if m.peer, err = FreeAddr(); err != nil {
			return err
		}
		c.members, initial = append(c.members, m), append(initial, name+"=http://"+m.peer)
	}
	for _, m := range c.members {
		m.cluster = strings.Join(initial, ",")
	}
	return nil
}

// loginTimeout limits the login of a new client, which is all that clientv3 limits by its
// DialTimeout. A busy machine may take long for it.
const loginTimeout = 30 * time.Second

// Endpoints returns the client URLs of all members, running or not, in order.
func (c *Cluster) Endpoints() []string {
	urls := make([]string, 0, len(c.members))
	for _, m := range c.members {
		urls = append(urls, m.clientURL().String())
	}
	return urls
}

// Addr returns the host:port of the client listener of member i, for a Proxy.
func (c *Cluster) Addr(i int) string { return c.members[i].client }

// Client returns a plain clientv3 client of all members, which Close closes. The edits can
// change its configuration (endpoints, TLS, user). Client does not wait for etcd, and the
// calls of the client have only the deadline of the caller.
func (c *Cluster) Client(edits ...func(*clientv3.Config)) (*clientv3.Client, error) {
	cfg := clientv3.Config{Endpoints: c.Endpoints(), DialTimeout: loginTimeout, Logger: zap.NewNop()}
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

// Close ends all clients and servers, and removes the temporary directory. It may be called
// more than once.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cli := range c.clients {
		_ = cli.Close() // fails if the caller has closed it
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

// FreeAddr returns a loopback address with a port that nobody else is given while this process lives, also while
// its server is dead: a server of another process there would prevent its restart, and answer its clients. On Linux
// a socket stays bound to the port, which keeps it from those who ask for any port, and from clients, which could
// connect to themselves. It does not listen, so a server can.
func FreeAddr() (string, error) {
	syscall.ForkLock.RLock()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return "", fmt.Errorf("localetcd: free port: %w", err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	bound, unnamed := unix.Getsockname(fd)
	if err = errors.Join(err, unnamed); err != nil || runtime.GOOS != "linux" { // others would refuse the server
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		return "", fmt.Errorf("localetcd: free port: %w", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port), nil
}
