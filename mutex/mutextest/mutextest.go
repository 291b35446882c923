// Package mutextest is for tests of code that uses package mutex: an etcd in memory, behind
// the real client, and the ways to lose a lock.
//
// The clients are real in all but the network, so that locks, waits, renewals and losses are
// those of production; the tests of package mutex run on both. Nothing listens, and nothing
// waits but for timers and channels: in a bubble of testing/synctest time is virtual, and a
// test of a patience of minutes takes none.
//
// Not guaranteed: the daemon. A lock past its deadline stays until the test calls Remove.
package mutextest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// Etcd is an etcd in memory. Its methods fail the test on an error.
type Etcd struct {
	t       testing.TB
	cluster *memetcd.Cluster
	admin   *memetcd.Link

	mu      sync.Mutex
	clients []*memetcd.Link
}

// New returns an empty etcd that lives as long as the test. Within a bubble of
// testing/synctest it must be given the t of the bubble, whose clock it advances from the
// year 2000, which the protocol takes for a mistake, to 2025.
func New(t testing.TB) *Etcd {
	t.Helper()
	if time.Now().UTC().Year() == 2000 { // the clock of a bubble begins in UTC
		<-time.After(time.Until(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)))
	}
	e := &Etcd{t: t, cluster: memetcd.New(memetcd.Options{})}
	t.Cleanup(func() {
		if err := e.cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	e.admin = e.connect()
	return e
}

func (e *Etcd) connect() *memetcd.Link {
	e.t.Helper()
	link, err := e.cluster.Connect()
	if err != nil {
		e.t.Fatal(err)
	}
	return link
}

// Client returns a client as another process would have it, with a connection of its own.
func (e *Etcd) Client(opts ...mutex.Option) *mutex.Client {
	e.t.Helper()
	link := e.connect()
	e.mu.Lock()
	e.clients = append(e.clients, link)
	e.mu.Unlock()
	c, err := mutex.New(link.Client, opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

// Etcd returns a client of etcd, to look at keys and for transactions with Lock.Cmp.
// Disconnect does not apply to it.
func (e *Etcd) Etcd() *clientv3.Client { return e.admin.Client }

// Remove removes a lock by force, as the daemon or a person does: its holder loses it with
// mutex.ErrForced, and it is free.
func (e *Etcd) Remove(name string) {
	e.t.Helper()
	dir := strings.TrimSuffix(e.find(name), "uuid")
	resp, err := e.admin.Get(context.Background(), dir, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		e.t.Fatal(err)
	}
	var deletes []clientv3.Op
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); !strings.Contains(strings.TrimPrefix(key, dir), "/") {
			deletes = append(deletes, clientv3.OpDelete(key))
		}
	}
	e.commit(deletes...)
}

// Take gives a lock to another holder, who never releases it, without it being free between:
// its holder loses it with mutex.ErrTaken. Remove frees it again.
func (e *Etcd) Take(name string) {
	e.t.Helper()
	e.commit(clientv3.OpPut(e.find(name), "another"))
}

// Disconnect cuts all clients off from etcd, until Connect: who does not renew in time loses
// his locks with mutex.ErrUnreachable.
func (e *Etcd) Disconnect() { e.set(memetcd.Unreachable()) }

// Connect ends a Disconnect.
func (e *Etcd) Connect() { e.set(memetcd.Faults{}) }

func (e *Etcd) set(f memetcd.Faults) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.clients {
		l.Set(f)
	}
}

// Full makes etcd refuse all writes but deletions, as one does whose disk quota is used up,
// or ends that. Who does not renew in time loses his locks with mutex.ErrNoSpace.
func (e *Etcd) Full(full bool) { e.cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, full) }

// find returns the key of the uuid of a lock, whatever the prefix is.
func (e *Etcd) find(name string) string {
	e.t.Helper()
	resp, err := e.admin.Get(context.Background(), "/", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		e.t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if strings.HasSuffix(string(kv.Key), "/"+name+"/uuid") {
			return string(kv.Key)
		}
	}
	e.t.Fatalf("mutextest: nobody holds lock %q", name)
	return ""
}

func (e *Etcd) commit(ops ...clientv3.Op) {
	e.t.Helper()
	if _, err := e.admin.Txn(context.Background()).Then(ops...).Commit(); err != nil {
		e.t.Fatal(err)
	}
}
