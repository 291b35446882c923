package localetcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
)

// member is one etcd server, running or not. Its addresses and directory do not change.
type member struct {
	name, dir    string
	client, peer string
	opts         Options
	cluster      string // the names and peer URLs of all
	generation   int    // the number of wipes, part of the cluster token

	mu    sync.Mutex
	etcd  *embed.Etcd
	grpcs []*grpc.Server
}

func (m *member) clientURL() *url.URL {
	scheme := "http"
	if m.opts.TLS.CertFile != "" {
		scheme = "https"
	}
	return &url.URL{Scheme: scheme, Host: m.client}
}

func (m *member) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.etcd != nil
}

// start starts the server. It does not wait for a quorum.
func (m *member) start() (*embed.Etcd, error) {
	e, err := embed.StartEtcd(m.config())
	// The port is nobody else's. But a process that is started just now has the listener of before until it executes.
	for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < 10*time.Second; {
		<-time.After(20 * time.Millisecond)
		e, err = embed.StartEtcd(m.config())
	}
	if err != nil {
		return nil, fmt.Errorf("localetcd: start %s: %w", m.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.etcd = e
	return e, nil
}

// kill stops the server at once. It stops the gRPC server and then raft, since
// embed.Etcd.Close alone would wait for open watches and transfer the leadership.
func (m *member) kill() {
	m.mu.Lock()
	e, grpcs := m.etcd, m.grpcs
	m.etcd, m.grpcs = nil, nil
	m.mu.Unlock()
	if e == nil {
		return
	}
	for _, g := range grpcs {
		g.Stop()
	}
	e.Server.HardStop()
	e.Close()
}

func (m *member) config() *embed.Config {
	o := m.opts
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = m.name, m.dir
	cfg.LogLevel = "panic" // or fatal, after which etcd ends the process
	cfg.ListenClientUrls = []url.URL{*m.clientURL()}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: m.peer}}
	cfg.AdvertisePeerUrls = cfg.ListenPeerUrls
	cfg.InitialCluster = m.cluster
	cfg.InitialClusterToken = fmt.Sprintf("localetcd-%d", m.generation)
	cfg.ClientTLSInfo = o.TLS
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	cfg.GRPCAdditionalServerOptions = o.Server
	cfg.BcryptCost = 4 // the minimum, to save CPU time
	cfg.QuotaBackendBytes = o.QuotaBackendBytes
	cfg.AuthToken = cmp.Or(o.AuthToken, cfg.AuthToken)
	cfg.MaxTxnOps = cmp.Or(o.MaxTxnOps, cfg.MaxTxnOps)
	cfg.AuthTokenTTL = cmp.Or(uint(o.AuthTokenTTL/time.Second), cfg.AuthTokenTTL)
	if o.Members == 1 {
		cfg.TickMs, cfg.ElectionMs = 10, 100 // there is no other member to wait for
	}
	cfg.ServiceRegister = func(g *grpc.Server) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.grpcs = append(m.grpcs, g)
	}
	return cfg
}

// Kill stops member i at once: open connections break, and its port refuses new ones. It
// returns when the server has ended. Killing a dead member does nothing.
func (c *Cluster) Kill(i int) { c.members[i].kill() }

// Server returns the server of a member that runs, which can be cut from its peers.
func (c *Cluster) Server(i int) *etcdserver.EtcdServer {
	c.members[i].mu.Lock()
	defer c.members[i].mu.Unlock()
	return c.members[i].etcd.Server
}

// Restart starts the given members again, or all dead members if none is given, with their
// addresses and their data, and waits until they serve. Of two dead members of three both
// must be started together, since neither becomes ready without the other.
func (c *Cluster) Restart(ctx context.Context, indexes ...int) error {
	var starting []*embed.Etcd
	for i, m := range c.members {
		if m.running() || len(indexes) > 0 && !slices.Contains(indexes, i) {
			continue
		}
		e, err := m.start()
		if err != nil {
			return err
		}
		starting = append(starting, e)
	}
	for _, e := range starting {
		select {
		case <-e.Server.ReadyNotify():
		case <-e.Server.StopNotify():
			return fmt.Errorf("localetcd: %s stopped while starting", e.Config().Name)
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // also if it was ready in the same instant
			return fmt.Errorf("localetcd: %s is not ready: %w", e.Config().Name, ctx.Err())
		}
	}
	return nil
}

// Wipe deletes the data of a dead single member. When it starts again it is an empty
// cluster with another cluster id, and its revisions begin at 1.
func (c *Cluster) Wipe() error {
	m, err := c.deadSingle("wipe")
	if err != nil {
		return err
	}
	m.generation++
	return os.RemoveAll(m.dir)
}

// Save copies the data of a dead single member for Revert. It replaces an earlier copy.
func (c *Cluster) Save() error { return c.copy("save", "", ".saved") }

// Revert restores the copy made by Save for a dead single member: the same cluster id with
// an older revision, as after a restore from a volume snapshot.
func (c *Cluster) Revert() error { return c.copy("revert", ".saved", "") }

// copy replaces one directory of a dead single member by another; they are given as what follows its name.
func (c *Cluster) copy(verb, from, to string) error {
	m, err := c.deadSingle(verb)
	if err != nil {
		return err
	}
	if _, err := os.Stat(m.dir + from); err != nil {
		return fmt.Errorf("localetcd: nothing to %s: %w", verb, err)
	}
	if err := os.RemoveAll(m.dir + to); err != nil {
		return err
	}
	return os.CopyFS(m.dir+to, os.DirFS(m.dir+from))
}

func (c *Cluster) deadSingle(verb string) (*member, error) {
	switch {
	case len(c.members) != 1:
		return nil, fmt.Errorf("localetcd: %s: only a single member can", verb)
	case c.members[0].running():
		return nil, fmt.Errorf("localetcd: %s: kill the member first", verb)
	}
	return c.members[0], nil
}
