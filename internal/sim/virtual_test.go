package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// virtual is a real etcd server of one member under virtual time: its clients reach it by connections in
// memory, whose faults it controls, so that the bubble in which it was started can move its clock. It is
// killed hard, restarted from its files, backed up and restored as operators do it.
//
// Guaranteed: what onApply reports are the commits of etcd's own store in their order, and the gRPC
// client, the server and all between them are those of production. What a stalled disk or network
// holds up is carried out when it resumes, also if its sender has given up.
//
// Not guaranteed: anything about several members, as those connect by sockets. A stall of the disk is one
// of applying entries. A kill is that of a process, not of a machine.
//
// Its methods may be called concurrently, but those that start and end the server from one goroutine at a time.
type virtual struct {
	record
	dir   string
	disk  disk
	admin *wire

	mu      sync.Mutex
	wires   []*wire
	serving *bufconn.Listener // nil while it is down
	open    bool              // for others than the admin
	server  *etcdserver.EtcdServer
	stop    func()
	token   string // of the cluster
	data    int    // counts the data directories
	closed  bool
	starts  sync.WaitGroup
}

// small keeps the files of each start small: etcd allocates them in advance.
var small = sync.OnceFunc(func() { wal.SegmentSizeBytes = 1 << 20 })

// startVirtual starts a new etcd below a directory, and returns when it serves.
func startVirtual(dir string) (*virtual, error) {
	small()
	e := &virtual{dir: dir, token: "virtual"}
	e.record.init()
	e.admin = e.connect(true)
	ready := make(chan struct{})
	if err := e.start(true, func() { close(ready) }); err != nil {
		return nil, err
	}
	<-ready
	e.starts.Wait()
	return e, nil
}

const (
	member = "m"
	peer   = "http://127.0.0.1:1" // nobody connects to it
)

func (e *virtual) config() config.ServerConfig {
	urls, lg := types.MustNewURLs([]string{peer}), zap.New(&e.disk)
	return config.ServerConfig{
		Name: member, DataDir: e.path(), ClientURLs: urls, PeerURLs: urls, InitialPeerURLsMap: types.URLsMap{member: urls}, InitialClusterToken: e.token, NewCluster: true, // unless it has data
		TickMs: 100, ElectionTicks: 10, SnapshotCount: 10_000, SnapshotCatchUpEntries: 5_000, MaxTxnOps: 128, MaxRequestBytes: 3 << 19, MaxConcurrentStreams: 1 << 30,
		AuthToken: "simple", BcryptCost: 4, TokenTTL: 300, WarningApplyDuration: time.Hour, WarningUnaryRequestDuration: time.Hour,
		WatchProgressNotifyInterval: 10 * time.Minute, UnsafeNoFsync: true, PreVote: true, MaxLearners: 1, Logger: lg,
		ServerFeatureGate: features.NewDefaultServerFeatureGate(member, lg),
	}
}

func (e *virtual) path() string { return filepath.Join(e.dir, fmt.Sprint("data-", e.data)) }

// start starts the server, with restored data or its own. In the background, once it is ready, it calls prepare while only the admin
// can connect, and then serves.
func (e *virtual) start(other bool, prepare func()) error {
	s, err := etcdserver.NewServer(e.config())
	if err != nil {
		return fmt.Errorf("virtual: start etcd: %w", err)
	}
	if other {
		e.record.restored(s.KV().Rev())
	}
	stream := s.Watchable().NewWatchStream()
	followed := make(chan struct{})
	if _, err := stream.Watch(context.Background(), 0, []byte{0}, []byte{}, e.record.next()); err != nil {
		return fmt.Errorf("virtual: follow etcd: %w", err)
	}
	go func() { defer close(followed); e.record.follow(stream.Chan()) }()
	s.Start()
	g := v3rpc.Server(s, nil, e.record.intercept, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	l := bufconn.Listen(1 << 16)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server = s
	e.stop = func() { g.Stop(); s.HardStop(); stream.Close(); <-followed }
	e.starts.Go(func() {
		select {
		case <-s.ReadyNotify():
		case <-s.StoppingNotify():
			return
		}
		if !e.serve(s, l, false) {
			return
		}
		go func() { _ = g.Serve(l) }() // it ends with the server
		prepare()
		e.serve(s, l, true)
	})
	return nil
}

// serve lets the admin connect, or all. It reports whether the server still runs.
func (e *virtual) serve(s *etcdserver.EtcdServer, l *bufconn.Listener, all bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != s {
		return false
	}
	e.serving, e.open = l, all
	return true
}

// kill ends the server at once. What it has not yet applied waits in its log.
func (e *virtual) kill() {
	e.mu.Lock()
	stop := e.stop
	e.serving, e.open, e.server, e.stop = nil, false, nil, nil
	e.mu.Unlock()
	if stop == nil {
		return
	}
	e.disk.set(false)
	stop()
	e.starts.Wait()
}

// restart starts the killed server from its files. It serves a little later.
func (e *virtual) restart() { check(e.start(false, func() {})) }

// close ends the server, and breaks all connections.
func (e *virtual) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.reset()
	e.kill()
}

// reset breaks the connections of all clients.
func (e *virtual) reset() {
	e.mu.Lock()
	wires := e.wires
	e.mu.Unlock()
	for _, l := range wires {
		l.reset()
	}
}

// stall stops or resumes the disk: nothing is applied meanwhile, and what reads the newest state waits.
func (e *virtual) stall(on bool) { e.disk.set(on) }

// snapshot writes a backup as of now and returns its path.
func (e *virtual) snapshot() (path string, err error) {
	f, err := os.CreateTemp(e.dir, "backup-")
	if err != nil {
		return "", err
	}
	s := e.server.Backend().Snapshot()
	_, err = s.WriteTo(f)
	return f.Name(), errors.Join(err, s.Close(), f.Close())
}

// replace replaces the data of the killed server by those of a backup, and starts it. In the background, it
// calls prepare when the admin can connect and others cannot.
func (e *virtual) replace(path string, how memetcd.Restored, prepare func()) error {
	if e.data++; how.NewCluster {
		e.token = fmt.Sprint("virtual-", e.data)
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: member, OutputDataDir: e.path(), PeerURLs: []string{peer}, InitialCluster: member + "=" + peer,
		InitialClusterToken: e.token, SkipHashCheck: true, RevisionBump: uint64(how.Bump), MarkCompacted: how.Bump > 0,
	})
	if err != nil {
		return fmt.Errorf("virtual: restore etcd: %w", err)
	}
	return e.start(true, prepare)
}
