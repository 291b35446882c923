package sim

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// server is a real etcd, with authentication. Daemons have the client of internal/etcd.
type server struct {
	*virtual
	w     *world
	admin *clientv3.Client
	links []*link
	// done is closed when the last chore is.
	done chan struct{}
}

const password = "secret"

func asRoot(c *clientv3.Config) { c.Username, c.Password = "root", password }

// addUsers adds users, each with a role of its name.
func addUsers(ctx context.Context, c *clientv3.Client, users ...string) error {
	for _, user := range users {
		if _, err := c.UserAdd(ctx, user, password); err != nil {
			return err
		}
		if _, err := c.RoleAdd(ctx, user); err != nil {
			return err
		}
		if _, err := c.UserGrantRole(ctx, user, user); err != nil {
			return err
		}
	}
	return nil
}

func newServer(w *world, dir string) *server {
	e, err := startVirtual(dir)
	check(err)
	s := &server{virtual: e, w: w, done: make(chan struct{})}
	close(s.done)
	c, err := e.admin.client()
	check(err)
	check(addUsers(w.ctx, c, "root", "unlocker"))
	_, err = c.RoleGrantPermission(w.ctx, "unlocker", "\x00", "\x00", clientv3.PermissionType(clientv3.PermReadWrite))
	check(err)
	_, err = c.AuthEnable(w.ctx)
	check(err)
	_ = c.Close()
	s.admin, err = e.admin.client(asRoot)
	check(err)
	return s
}

func (s *server) daemon(d *daemon) (*link, error) {
	n := s.connect(false)
	n.onRequest(func(req any) { s.w.judge.sent(d, req.(memetcd.Message)) })
	o := s.w.config.Etcd
	o.Endpoints, o.Username, o.Password = []string{"passthrough:///etcd"}, "unlocker", config.NewSecret(password)
	c, err := etcd.New(etcd.Options{
		Etcd: o, HangAfter: 2 * s.w.config.Reaper.ProbeInterval,
		DialOptions: append([]grpc.DialOption{grpc.WithChainUnaryInterceptor(d.trapped, d.edit), grpc.WithChainStreamInterceptor(d.streamed)}, n.dialOptions()...),
	})
	if err != nil {
		return nil, err
	}
	return s.link(n, c.Client, c.Close), nil
}

// onServer is the network of a client of the server.
type onServer struct {
	*wire
	end func()
}

// Cut implements network.
func (n onServer) Cut() {
	n.onRequest(nil)
	n.Set(memetcd.Faults{Refuse: true})
}

// Close implements network. It waits for nothing.
func (n onServer) Close() error {
	n.end()
	return nil
}

func (s *server) link(n *wire, c *clientv3.Client, end func() error) *link {
	l := &link{c, onServer{n, sync.OnceFunc(func() { s.w.people.Go(func() { _ = end() }) })}, n}
	s.links = append(s.links, l)
	return l
}

func (s *server) other() (*link, error) {
	n := s.connect(false)
	c, err := n.client(asRoot)
	if err != nil {
		return nil, err
	}
	return s.link(n, c, c.Close), nil
}

func (s *server) reconnects() time.Duration { return 5 * time.Second }

// chore waits for etcd in the background.
func (s *server) chore(do chore) {
	before := s.done
	done := make(chan struct{})
	s.done = done
	s.w.people.Go(func() {
		defer close(done)
		<-before
		ctx, cancel := context.WithTimeout(s.w.ctx, 10*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			if _, err := s.admin.AlarmList(ctx); err == nil { // connected again
				break
			}
			sleep(ctx, 200*time.Millisecond)
		}
		do(ctx, s.admin)
	})
}

func (s *server) expireTokens() {
	s.chore(func(ctx context.Context, admin *clientv3.Client) {
		_, _ = admin.UserChangePassword(ctx, "unlocker", password)
	})
}

func (s *server) save() any {
	path, err := s.snapshot()
	check(err)
	return path
}

func (s *server) restore(backup any, how memetcd.Restored, replaced func(), looked chore) {
	s.kill()
	replaced()
	next := make(chan *clientv3.Client, 1)
	check(s.replace(backup.(string), how, func() {
		admin, err := s.virtual.admin.client(asRoot) // a token of the other history would wait until its index comes
		check(err)
		looked(s.w.ctx, admin)
		next <- admin
	}))
	s.chore(func(_ context.Context, before *clientv3.Client) {
		select {
		case s.admin = <-next:
			_ = before.Close()
		case <-s.w.ctx.Done():
		}
	})
}

func (s *server) close() {
	for _, l := range s.links {
		_ = l.Close()
	}
	<-s.done
	_ = s.admin.Close()
	s.virtual.close()
}
