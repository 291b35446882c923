//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// queue returns the range of the tickets of a name.
func (w world) queue(name string) (from, end string) {
	return protocol.TicketsOf("/unlocker/waiters"+w.prefix, name)
}

// tickets returns those of a name in their order.
func tickets(t *testing.T, w world, name string) []*mvccpb.KeyValue {
	t.Helper()
	from, end := w.queue(name)
	resp, err := w.etcd.Get(t.Context(), from, clientv3.WithRange(end), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	require.NoError(t, err)
	return resp.Kvs
}

func ticketOf(t *testing.T, kv *mvccpb.KeyValue) protocol.Ticket {
	t.Helper()
	ticket, err := protocol.ParseTicket(kv.Value)
	require.NoError(t, err)
	return ticket
}

// line is a lock with waiters, which come one after another.
type line struct {
	w      world
	holder *mutex.Lock
	slots  int // 0 for a lock
	opts   []mutex.Option
	taken  chan taken
	stop   context.CancelFunc
	ctx    context.Context
}

type taken struct {
	who int
	l   *mutex.Lock
	err error
}

// newLine has waiters for a lock, or for the last free one of several slots.
func newLine(t *testing.T, w world, slots int) *line {
	q := &line{w: w, slots: slots, taken: make(chan taken, 10)}
	q.ctx, q.stop = context.WithCancel(t.Context())
	if slots > 0 {
		q.opts = append(q.opts, mutex.Slots(slots))
	}
	for range max(slots, 1) {
		q.holder = w.lock(w.client(), "a", append(q.opts, mutex.KeepAlive(mutex.Forever))...)
	}
	return q
}

// lines runs a test with a lock, and with slots.
func lines(t *testing.T, test func(*testing.T, world, *line)) {
	eachSlots(t, func(t *testing.T, slots int) {
		on(t, func(t *testing.T, w world) { test(t, w, newLine(t, w, slots)) })
	})
}

func eachSlots(t *testing.T, test func(t *testing.T, slots int)) {
	for _, slots := range []int{0, 3} {
		t.Run(fmt.Sprint("slots=", slots), func(t *testing.T) { test(t, slots) })
	}
}

// join adds a waiter, and returns when it has its ticket.
func (q *line) join(who int, c *mutex.Client, opts ...mutex.Option) {
	before := len(tickets(q.w.t, q.w, "a"))
	go func() {
		l, err := c.Lock(q.ctx, "a", append(opts, q.opts...)...)
		q.taken <- taken{who, l, err}
	}()
	eventually(q.w.t, func() bool { return len(tickets(q.w.t, q.w, "a")) > before })
}

// forge puts n tickets that nobody has, 0 and on behind the prefix that it returns.
func (q *line) forge(n int) (from string) {
	from, _ = protocol.TicketsOf("/unlocker/waiters/mutexes/", "a")
	for i := range n {
		_, err := q.w.etcd.Put(q.w.t.Context(), fmt.Sprint(from, i), "nonsense")
		require.NoError(q.w.t, err)
	}
	return from
}

// apart has those who join meanwhile wait until stop.
func (q *line) apart(join func()) {
	all := q.ctx
	q.ctx, q.stop = context.WithCancel(all)
	join()
	q.ctx = all
}

// next returns the next holder, after how long it has the lock.
func (q *line) next() (who int, after time.Duration) {
	q.w.t.Helper()
	began := time.Now()
	select {
	case got := <-q.taken:
		require.NoError(q.w.t, got.err)
		q.holder = got.l
		return got.who, time.Since(began)
	case <-time.After(10 * time.Minute): // of virtual time
		require.FailNow(q.w.t, "nobody takes the lock")
		return 0, 0
	}
}

func (q *line) release() {
	q.w.t.Helper()
	require.NoError(q.w.t, q.holder.Unlock(q.w.t.Context()))
}

// serves requires that waiters get the lock in this order, each soon.
func (q *line) serves(order ...int) {
	q.w.t.Helper()
	for _, want := range order {
		q.release()
		who, after := q.next()
		require.Equal(q.w.t, want, who)
		if realEtcd == "" {
			require.Less(q.w.t, after, 300*time.Millisecond)
		}
	}
	q.release()
	eventually(q.w.t, func() bool { return len(tickets(q.w.t, q.w, "a")) == 0 })
}

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	lines(t, func(_ *testing.T, w world, q *line) {
		for who := range 6 {
			q.join(who, w.client())
		}
		q.serves(0, 1, 2, 3, 4, 5)
	})
}

// Who has released the lock and wants it again is the last.
func TestHolderQueuesAgain(t *testing.T) {
	lines(t, func(t *testing.T, w world, q *line) {
		q.join(1, w.client())
		q.join(2, w.client())
		c := w.client()
		q.release()
		who, _ := q.next()
		require.Equal(t, 1, who)
		q.join(1, c)
		q.serves(2, 1)
	})
}

func TestTicketSaysWhoWaits(t *testing.T) {
	lines(t, func(t *testing.T, w world, q *line) {
		c := w.client(mutex.Owner("billing"), mutex.Purpose("invoices"))
		var outer, inner string
		done := make(chan error, 1)
		go func() {
			done <- c.WithLock(q.ctx, "outer", func(ctx context.Context) error {
				l, _ := mutex.FromContext(ctx)
				outer = l.UUID()
				return c.WithLock(ctx, "inner", func(ctx context.Context) error {
					l, _ := mutex.FromContext(ctx)
					inner = l.UUID()
					return c.WithLock(ctx, "a", func(context.Context) error { return nil }, q.opts...)
				})
			})
		}()
		eventually(t, func() bool { return len(tickets(t, w, "a")) > 0 })
		q.join(2, c)
		kvs := tickets(t, w, "a")
		require.Len(t, kvs, 2)
		require.NotZero(t, kvs[0].Lease)
		require.Equal(t, kvs[0].Lease, kvs[1].Lease, "one lease for all waits of a client")
		ticket := ticketOf(t, kvs[0])
		require.Equal(t, []string{outer, inner}, ticket.Holds)
		require.Equal(t, "billing", ticket.Owner)
		require.Equal(t, "invoices", ticket.Purpose)
		require.NotEmpty(t, ticket.PID)
		require.Equal(t, q.slots, ticket.Slots)
		require.WithinDuration(t, time.Now(), ticket.Since, soon)
		require.True(t, strings.HasSuffix(string(kvs[0].Key), "//"+ticket.UUID))
		require.Empty(t, ticketOf(t, kvs[1]).Holds)
		q.release()
		require.NoError(t, <-done)
		_, _ = q.next()
		require.Equal(t, ticketOf(t, kvs[1]).UUID, q.holder.UUID())
		q.release()
	})
}

// TestRequestsOfAWait: a waiter sends no more than it must, wherever it is in the queue at first.
func TestRequestsOfAWait(t *testing.T) {
	for others := range 3 {
		t.Run(fmt.Sprint(others, " before it"), func(t *testing.T) {
			chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
				c, link := connect()
				for who := range others {
					q.join(who, q.w.client())
				}
				sent := map[string]int{}
				link.OnRequest(func(req memetcd.Message) memetcd.Faults {
					kind := fmt.Sprintf("%T", req)
					if w, ok := req.(*etcdserverpb.WatchRequest); ok {
						kind = fmt.Sprintf("%T", w.RequestUnion)
					}
					sent[strings.TrimPrefix(kind, "*etcdserverpb.")]++
					return memetcd.Faults{}
				})
				q.join(others, c)
				<-time.After(4 * time.Second)
				for want := range others + 1 {
					q.release()
					who, _ := q.next()
					require.Equal(t, want, who)
					<-time.After(20 * time.Millisecond)
				}
				q.release()
				link.OnRequest(nil)
				later := others / 2                    // it waits first for the ticket two before
				looks := (3 + later) * min(q.slots, 1) // which slots are free
				require.Equal(t, map[string]int{
					"TxnRequest":                 4 + looks, // fails; fails and puts the ticket; takes the lock; releases it
					"LeaseGrantRequest":          1,
					"WatchRequest_CreateRequest": 1 + later,
				}, sent)
			})
		})
	}
}

// chaos is a line on an etcd in memory, with the links of its waiters.
func chaos(t *testing.T, test func(*testing.T, *memetcd.Cluster, *line, func() (*mutex.Client, *memetcd.Link))) {
	eachSlots(t, func(t *testing.T, slots int) {
		simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
			_, admin := connect()
			w := world{t: t, etcd: admin.Client, prefix: "/mutexes/", connect: func(...func(*clientv3.Config)) *clientv3.Client {
				_, link := connect()
				return link.Client
			}}
			test(t, cluster, newLine(t, w, slots), func() (*mutex.Client, *memetcd.Link) { return connect() })
		})
	})
}

// putsTicket reports whether a transaction puts a ticket if it cannot take the lock.
func putsTicket(txn *etcdserverpb.TxnRequest) bool {
	return slices.ContainsFunc(txn.GetFailure(), func(op *etcdserverpb.RequestOp) bool { return op.GetRequestPut() != nil })
}

// TestLostTickets: whichever ticket is deleted, all get the lock, and who has lost it is the last.
func TestLostTickets(t *testing.T) {
	for lost := range 4 {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			lines(t, func(t *testing.T, w world, q *line) {
				for who := range 4 {
					q.join(who, w.client())
				}
				_, err := w.etcd.Delete(t.Context(), string(tickets(t, w, "a")[lost].Key))
				require.NoError(t, err)
				var served []int
				for range 4 {
					q.release()
					who, after := q.next()
					served = append(served, who)
					require.Less(t, after, 2*time.Second)
				}
				q.release()
				order := slices.DeleteFunc([]int{0, 1, 2, 3}, func(who int) bool { return who == lost })
				require.Equal(t, append(order, lost), served)
			})
		})
	}
}

// TestTicketPutLate: etcd executes the first attempt to queue after the waiter has taken the lock. The lease is that of another
// wait, too.
func TestTicketPutLate(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		other := q.w.lock(q.w.client(), "b", mutex.KeepAlive(mutex.Forever))
		waited := make(chan error, 1)
		go func() { waited <- c.WithLock(t.Context(), "b", func(context.Context) error { return nil }) }()
		eventually(t, func() bool { return len(tickets(t, q.w, "b")) > 0 })
		disturbFirst(link, putsTicket, memetcd.Faults{Request: 20 * time.Second}) // the client gives up, and it is executed
		q.join(1, c, mutex.KeepAlive(mutex.Forever))
		q.release()
		who, _ := q.next()
		require.Equal(t, 1, who)
		require.Empty(t, tickets(t, q.w, "a"))
		from, end := q.w.queue("a")
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		require.NotEmpty(t, (<-q.w.etcd.Watch(ctx, from, clientv3.WithRange(end), clientv3.WithFilterDelete())).Events, "it was executed")
		<-time.After(time.Minute)
		require.Empty(t, tickets(t, q.w, "a"))
		require.NoError(t, q.holder.Held())
		q.release()
		require.NoError(t, other.Unlock(t.Context()))
		require.NoError(t, <-waited)
	})
}

// A waiter that learns of its ticket by a later attempt waits for those before it all the same.
func TestTicketWithoutAnAnswer(t *testing.T) {
	chaos(t, func(_ *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		first, slow := connect()
		q.join(1, first)
		c, link := connect()
		disturbFirst(link, putsTicket, memetcd.Faults{HoldAnswers: true})
		q.join(2, c)
		<-time.After(10 * time.Second)
		slow.Set(memetcd.Faults{Request: 100 * time.Millisecond})
		q.serves(1, 2)
	})
}

// A waiter that gives up leaves the others in order.
func TestWaitersGiveUp(t *testing.T) {
	for left := range 4 {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			lines(t, func(t *testing.T, w world, q *line) {
				order := []int{}
				for who := range 4 {
					if who != left {
						order = append(order, who)
						q.join(who, w.client())
						continue
					}
					q.apart(func() { q.join(who, w.client()) })
				}
				q.stop()
				require.ErrorIs(t, (<-q.taken).err, mutex.ErrHeld)
				eventually(t, func() bool { return len(tickets(t, w, "a")) == 3 })
				q.serves(order...)
			})
		})
	}
}

// A client without tickets takes what is free, and costs nobody its place.
func TestClientsWithoutTickets(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		for who := range 3 {
			q.join(who, q.w.client())
		}
		for i := range 3 { // each takes it in the moment of the release
			_, err := q.w.etcd.Put(t.Context(), "/mutexes/"+q.holder.Name()+"/uuid", fmt.Sprint("other", i))
			require.NoError(t, err)
			<-time.After(5 * time.Second)
		}
		require.Len(t, tickets(t, q.w, "a"), 3)
		require.ErrorIs(t, q.holder.Unlock(t.Context()), mutex.ErrTaken)
		_, err := q.w.etcd.Delete(t.Context(), "/mutexes/"+q.holder.Name()+"/", clientv3.WithPrefix())
		require.NoError(t, err)
		who, _ := q.next()
		require.Zero(t, who)
		q.serves(1, 2)
	})
}

// A waiter that finds the lock taken in the moment of the release keeps its ticket, and puts it once.
func TestWaiterThatComesTooLate(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		q.join(1, c)
		q.join(2, q.w.client())
		passing := delayAttempt(link, 100*time.Millisecond)
		uuid := "/mutexes/" + q.holder.Name() + "/uuid"
		q.release()
		<-passing
		sent := count[*etcdserverpb.TxnRequest](link)
		_, err := q.w.etcd.Put(t.Context(), uuid, "other")
		require.NoError(t, err)
		<-time.After(5 * time.Second)
		require.EqualValues(t, min(q.slots, 1), sent.Load(), "it knows its place, and looks whether another slot is free")
		require.Len(t, tickets(t, q.w, "a"), 2)
		require.EqualValues(t, 1, tickets(t, q.w, "a")[0].Version)
		_, err = q.w.etcd.Delete(t.Context(), uuid)
		require.NoError(t, err)
		who, _ := q.next()
		require.Equal(t, 1, who)
		q.serves(2)
	})
}

// TryLock does not queue.
func TestTryLockTakesWhatIsFree(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		from, _ := w.queue("a")
		_, err := w.etcd.Put(t.Context(), from+"t", "")
		require.NoError(t, err)
		l, err := w.client().TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.Len(t, tickets(t, w, "a"), 1)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// refusing is a connection without rights to the tickets, or without leases.
type refusing struct {
	clientv3.KV
	clientv3.Lease
	txn, grant error
}

func (r refusing) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if r.grant != nil {
		return nil, r.grant
	}
	return r.Lease.Grant(ctx, ttl)
}

func (r refusing) Txn(ctx context.Context) clientv3.Txn {
	return &refusedTxn{Txn: r.KV.Txn(ctx), err: r.txn}
}

type refusedTxn struct {
	clientv3.Txn
	err, refused error
}

func (t *refusedTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	for _, c := range cs {
		if t.err != nil && strings.HasPrefix(string(c.KeyBytes()), "/unlocker/waiters/") {
			t.refused = t.err
		}
	}
	t.Txn = t.Txn.If(cs...)
	return t
}

func (t *refusedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *refusedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *refusedTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.refused != nil {
		return nil, t.refused
	}
	return t.Txn.Commit()
}

// TestWaitsWithoutTickets: where a client may not put tickets it waits all the same, and says so once.
func TestWaitsWithoutTickets(t *testing.T) {
	for name, r := range map[string]refusing{
		"no right":  {txn: rpctypes.ErrPermissionDenied},
		"no space":  {grant: rpctypes.ErrNoSpace},
		"no leases": {grant: status.Error(codes.Unimplemented, "no leases")},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				holder := w.lock(w.client(), "a")
				etcd := w.connect()
				r.KV, r.Lease = etcd.KV, etcd.Lease
				etcd.KV, etcd.Lease = r, r
				log, said := logged()
				c := w.over(etcd, log)
				got := make(chan error, 5)
				for range 5 {
					go func() {
						got <- c.WithLock(t.Context(), "a", func(context.Context) error { return nil })
					}()
				}
				<-time.After(time.Second)
				require.Empty(t, got)
				require.NoError(t, holder.Unlock(t.Context()))
				for range 5 {
					require.NoError(t, <-got)
				}
				require.Len(t, said(), 1)
				require.Contains(t, said()[0], "no tickets under /unlocker/waiters"+w.prefix)
				require.Empty(t, tickets(t, w, "a"))
			})
		})
	}
}

// A waiter without a ticket sends nothing while others hand the lock on.
func TestUnorderedWaiterSendsNothingMeanwhile(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		l := w.lock(w.client(), "a")
		var requests atomic.Int64
		etcd := countedEtcd(w, &requests)
		r := refusing{KV: etcd.KV, Lease: etcd.Lease, txn: rpctypes.ErrPermissionDenied}
		etcd.KV, etcd.Lease = r, r
		c := w.over(etcd, mutex.Observe(nil))
		waited := make(chan error, 1)
		go func() { waited <- c.WithLock(t.Context(), "a", func(context.Context) error { return nil }) }()
		<-time.After(time.Second)
		before := requests.Load()
		every := 20 * time.Second // in sum longer than a watch may be silent
		if realEtcd != "" {
			every = time.Second
		}
		for i := range 10 {
			w.txn(clientv3.OpPut(w.prefix+"a/uuid", fmt.Sprint("other", i)))
			<-time.After(every)
		}
		require.Equal(t, before, requests.Load())
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrTaken)
		w.txn(clientv3.OpDelete(w.prefix+"a/", clientv3.WithPrefix()))
		require.NoError(t, <-waited)
	})
}

// A waiter in an etcd that was restored to the time before its ticket queues again.
func TestWaitersAfterARestore(t *testing.T) {
	for _, how := range []memetcd.Restored{{}, {NewCluster: true}, {Bump: 1e6}} {
		t.Run(fmt.Sprintf("%+v", how), func(t *testing.T) {
			chaos(t, func(t *testing.T, cluster *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
				before := cluster.Snapshot()
				for who := range 3 {
					q.join(who, q.w.client())
				}
				cluster.Restore(before, how)
				<-time.After(2 * time.Minute)
				_, err := q.w.etcd.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
				require.NoError(t, err)
				for range 3 {
					_, after := q.next()
					require.Less(t, after, 2*time.Minute)
					_ = q.holder.Unlock(t.Context())
				}
			})
		})
	}
}
