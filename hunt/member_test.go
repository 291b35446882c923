//go:build hunt

package hunt

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// memberEnv is the environment variable with the configuration of a member, as JSON. With it
// the test binary is that member and runs no tests.
const memberEnv = "HUNT_MEMBER"

// The lines that a member reads from its standard input.
const (
	cutLine  = "cut"  // drop all messages to and from its peers
	mendLine = "mend" // drop no more
)

// member is an etcd server in a process of its own. The exported fields are its configuration.
type member struct {
	Name, Dir    string
	Client, Peer string // host:port
	Initial      string // the initial cluster
	Existing     bool   // it joins a cluster that runs

	*process
	violate func(format string, args ...any)
}

// process is one life of a member.
type process struct {
	cmd   *exec.Cmd
	stdin io.Writer
	end   context.CancelFunc // kills it
	// ready is closed when it serves, and id is set; ended when the process has ended.
	ready, ended chan struct{}
	id           uint64
}

// serveMember is the main function of a member. It ends with its standard input.
func serveMember(config string) error {
	m := &member{}
	if err := json.Unmarshal([]byte(config), m); err != nil {
		return err
	}
	e, err := embed.StartEtcd(m.etcd())
	if err != nil {
		return fmt.Errorf("member %s: %w", m.Name, err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return fmt.Errorf("member %s: %w", m.Name, err)
	}
	fmt.Println(uint64(e.Server.MemberID()))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		partition(e.Server, lines.Text() == cutLine)
	}
	return lines.Err()
}

func (m *member) etcd() *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir, c.LogLevel = m.Name, m.Dir, "panic"
	c.ListenClientUrls = []url.URL{{Scheme: "http", Host: m.Client}}
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: m.Peer}}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = m.Initial
	if m.Existing {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.UnsafeNoFsync = true
	c.AuthTokenTTL, c.BcryptCost = 2, 4 // a client that is cut off for longer must log in again
	// The check refuses a new member within 5 s after a fault.
	c.StrictReconfigCheck = false
	return c
}

func (m *member) peerURL() string { return "http://" + m.Peer }

func partition(s *etcdserver.EtcdServer, cut bool) {
	for _, peer := range s.Cluster().Members() {
		switch {
		case peer.ID == s.MemberID():
		case cut:
			s.CutPeer(peer.ID)
		default:
			s.MendPeer(peer.ID)
		}
	}
}

// start starts the process. It does not wait for a quorum.
func (m *member) start() error {
	config, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), memberEnv+"="+string(config))
	// A stopped process would not notice the end of its standard input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	stdout, pipeErr := cmd.StdoutPipe()
	if err := errors.Join(err, pipeErr, cmd.Start()); err != nil {
		cancel()
		return err
	}
	m.process = &process{cmd: cmd, stdin: stdin, end: cancel, ready: make(chan struct{}), ended: make(chan struct{})}
	go m.follow(ctx, m.process, stdout)
	return nil
}

// follow waits until the process is ready, and until it has ended.
func (m *member) follow(ctx context.Context, p *process, stdout io.Reader) {
	defer close(p.ended)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == nil {
		p.id, err = strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	}
	if err == nil {
		close(p.ready)
	}
	if err = errors.Join(err, p.cmd.Wait()); ctx.Err() == nil {
		m.violate("the hunt itself: member %s ended: %v", m.Name, err)
	}
}

// wait waits until the member serves.
func (m *member) wait(ctx context.Context) error {
	select {
	case <-m.ready:
		return nil
	case <-m.ended:
		return fmt.Errorf("member %s does not start", m.Name)
	case <-ctx.Done():
		return fmt.Errorf("member %s is not ready: %w", m.Name, ctx.Err())
	}
}

// kill kills the process with SIGKILL, also if it is stopped, and waits for its end.
func (m *member) kill() {
	m.end()
	<-m.ended
}

// signal does nothing if the process has ended.
func (m *member) signal(s syscall.Signal) { _ = m.cmd.Process.Signal(s) }

// tell does nothing if the process has ended.
func (m *member) tell(line string) { _, _ = fmt.Fprintln(m.stdin, line) }
