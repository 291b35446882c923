package sim

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// backend is the etcd that a history runs on: one in memory, or a real server.
type backend interface {
	// daemon connects a daemon; other connects another client.
	daemon(d *daemon) (*link, error)
	other() (*link, error)
	// onApply sets what is called with all that etcd carries out.
	onApply(func(applied))

	kill()
	restart()
	// stall stops or resumes the disk.
	stall(on bool)
	// reset breaks all connections.
	reset()
	expireTokens()
	// chore lets the admin do something, after the chores before.
	chore(chore)

	// save makes a backup. restore brings it back: it calls replaced in the instant in which the data are the old
	// ones, and looked before others than the admin connect.
	save() (backup any)
	restore(backup any, how memetcd.Restored, replaced func(), looked chore)
	// reconnects is how long it may take until all are connected again after a fault.
	reconnects() time.Duration
	close()
}

// chore is what the administrator of an etcd does.
type chore func(ctx context.Context, admin *clientv3.Client)

// link is a client, and the network between it and etcd.
type link struct {
	*clientv3.Client
	network
	// id is that of what it sent in applied.
	id any
}

// Close ends the client and its network.
func (l *link) Close() error { return l.network.Close() }

type network interface {
	Set(memetcd.Faults)
	// Cut lets nothing through any more, and no judge hears of it.
	Cut()
	Close() error
}

// applied is what etcd carried out or refused.
type applied struct {
	from    any // the id of a link, nil where it is not known
	request any
	err     error
	events  []*mvccpb.Event
}

// memory is the etcd in memory.
type memory struct {
	*memetcd.Cluster
	w     *world
	admin *clientv3.Client
}

// keepAlive is when a silent connection breaks, as internal/etcd has it.
const keepAlive = 14 * time.Second

func newMemory(w *world, keepAlive time.Duration) *memory {
	m := &memory{memetcd.New(memetcd.Options{Revision: 100, KeepAlive: keepAlive}), w, nil}
	l, err := m.Connect()
	check(err)
	m.admin = l.Client
	return m
}

// daemon connects it as internal/etcd does, as far as its behavior depends on it.
func (m *memory) daemon(d *daemon) (*link, error) {
	l, err := m.Connect(func(c *clientv3.Config) {
		c.Username, c.Password = "unlocker", "secret"
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(d.trapped, d.bound, d.edit), grpc.WithChainStreamInterceptor(d.streamed))
	})
	if err != nil {
		return nil, err
	}
	l.OnRequest(func(req memetcd.Message) memetcd.Faults {
		m.w.judge.sent(d, req)
		return m.w.disk(req)
	})
	return &link{l.Client, inMemory{l}, l}, nil
}

// inMemory is the network of the etcd in memory.
type inMemory struct{ *memetcd.Link }

// AuthType implements credentials.AuthInfo: it stands for the connection, of which etcd.Departs asks when it began.
func (inMemory) AuthType() string { return "" }

// Cut implements network.
func (n inMemory) Cut() {
	n.OnRequest(nil)
	n.Set(memetcd.Unreachable())
}

func (m *memory) other() (*link, error) {
	l, err := m.Connect()
	if err != nil {
		return nil, err
	}
	l.OnRequest(m.w.disk)
	return &link{l.Client, inMemory{l}, l}, nil
}

func (m *memory) onApply(f func(applied)) {
	m.OnApply(func(a memetcd.Applied) { f(applied{a.Link, a.Request, a.Err, a.Events}) })
}

func (m *memory) kill()                     {} // all are refused
func (m *memory) restart()                  {}
func (m *memory) stall(bool)                {} // each request waits by itself
func (m *memory) reset()                    { m.Break() }
func (m *memory) expireTokens()             { m.ExpireTokens() }
func (m *memory) chore(do chore)            { do(m.w.ctx, m.admin) }
func (m *memory) save() any                 { return m.Snapshot() }
func (m *memory) reconnects() time.Duration { return 0 }
func (m *memory) close()                    { _ = m.Close() }

func (m *memory) restore(backup any, how memetcd.Restored, replaced func(), looked chore) {
	replaced()
	m.Restore(backup.(*memetcd.Snapshot), how)
	looked(m.w.ctx, m.admin)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
