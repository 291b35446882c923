//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// The supported versions. The newest is the first one that streams a listing.
var versions = []string{"3.5.35", "3.6.8", newest}

const (
	newest = "3.7.3"
	// soon is the deadline for everything that depends only on the programs, on a busy
	// machine.
	soon   = time.Minute
	poll   = 50 * time.Millisecond
	prefix = "/mutexes/"
)

// supported are the versions to test with: in the short form of the gate the newest alone.
func supported() []string {
	if testing.Short() {
		return []string{newest}
	}
	return versions
}

// server is an etcd. It keeps its data when its process is killed and run again.
type server struct {
	*process
	t      *testing.T
	name   string
	binary string
	// cluster are the names and peers of all members, as etcd takes them.
	cluster string
	dir     string
	addr    string
	peer    string
	client  *clientv3.Client
}

// building is held while a program is built, which may be wanted by several tests at a time.
var building sync.Mutex

// buildEtcd returns the path of the server of a version.
func buildEtcd(t *testing.T, version string) (path string) {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	cache = filepath.Join(cache, "unlocker-e2e")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "./etcd.sh", version, cache).CombinedOutput(); err != nil {
		missing(t, "etcd %s cannot be built: %v\n%s", version, err, out)
	}
	return filepath.Join(cache, "etcd-"+version)
}

func startEtcd(t *testing.T, version string) *server {
	t.Helper()
	s := newServer(t, version, "e2e")
	s.cluster = s.asPeer()
	s.run()
	return s
}

// startMembers runs a cluster of three servers.
func startMembers(t *testing.T, version string) (members []*server) {
	t.Helper()
	var cluster []string
	for i := range 3 {
		s := newServer(t, version, fmt.Sprintf("e2e-%d", i))
		members, cluster = append(members, s), append(cluster, s.asPeer())
	}
	for _, s := range members {
		s.cluster = strings.Join(cluster, ",")
		s.launch()
	}
	for _, s := range members {
		s.awaitReady()
	}
	return members
}

// newServer returns a server that does not run.
func newServer(t *testing.T, version, name string) *server {
	t.Helper()
	s := &server{t: t, name: name, binary: buildEtcd(t, version), dir: t.TempDir(), addr: etcdtest.FreeAddr(t), peer: etcdtest.FreeAddr(t)}
	var err error
	s.client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

func (s *server) asPeer() string { return s.name + "=http://" + s.peer }

// run starts the server, or starts it again after its process was killed.
func (s *server) run() {
	s.t.Helper()
	s.launch()
	s.awaitReady()
}

func (s *server) launch() {
	s.t.Helper()
	s.process = start(s.t, s.binary, "--name", s.name, "--data-dir", s.dir, "--log-level", "warn",
		"--listen-client-urls", "http://"+s.addr, "--advertise-client-urls", "http://"+s.addr,
		"--listen-peer-urls", "http://"+s.peer, "--initial-advertise-peer-urls", "http://"+s.peer,
		"--initial-cluster", s.cluster)
}

func (s *server) awaitReady() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		_, err := s.client.Get(ctx, "ready")
		return err == nil
	}, soon, poll)
}

// fieldsOfALock is the number of fields that lock puts.
const fieldsOfALock = 5

func lock(name string, alert, unlock time.Time) []clientv3.Op {
	var ops []clientv3.Op
	for _, kv := range [][2]string{
		{"uuid", "uuid of " + name},
		{"hostname", "worker-1.example.org"},
		{"locked_at", strconv.FormatInt(time.Now().Unix(), 10)},
		{"alert_at", strconv.FormatInt(alert.Unix(), 10)},
		{"auto_unlock_at", strconv.FormatInt(unlock.Unix(), 10)},
	} {
		ops = append(ops, clientv3.OpPut(prefix+name+"/"+kv[0], kv[1]))
	}
	return ops
}

// putLocks writes n locks with names under below.
func (s *server) putLocks(below string, n int, alert, unlock time.Time) {
	s.t.Helper()
	var ops []clientv3.Op
	for i := range n {
		ops = append(ops, lock(fmt.Sprintf("%s/%05d", below, i), alert, unlock)...)
	}
	for chunk := range slices.Chunk(ops, 20*fieldsOfALock) {
		ctx, cancel := context.WithTimeout(s.t.Context(), soon)
		_, err := s.client.Txn(ctx).Then(chunk...).Commit()
		cancel()
		require.NoError(s.t, err)
	}
}

// keys returns the number of keys of all locks under below, and the revision of etcd.
func (s *server) keys(below string) (count, revision int64) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	resp, err := s.client.Get(ctx, prefix+below, clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(s.t, err)
	return resp.Count, resp.Header.Revision
}

func (s *server) awaitGone(below string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		count, _ := s.keys(below)
		return count == 0
	}, soon, poll)
}
