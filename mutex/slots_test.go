//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// Each slot is a lock. TryLock takes any that is free, also where others wait.
func TestSlots(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		var names []string
		var locks []*mutex.Lock
		for range 3 {
			var requests atomic.Int64
			l, err := counted(w, &requests).Lock(t.Context(), "a/b", mutex.Slots(3))
			require.NoError(t, err)
			require.EqualValues(t, 2, requests.Load(), "one to read, one to take")
			require.Equal(t, l.UUID(), w.fields()[l.Name()+"/uuid"])
			names, locks = append(names, l.Name()), append(locks, l)
		}
		require.Equal(t, []string{"a/b/0", "a/b/1", "a/b/2"}, slices.Sorted(slices.Values(names)))
		_, err := w.client().TryLock(t.Context(), "a/b", mutex.Slots(3))
		var held *mutex.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "a/b", held.Name)
		require.Equal(t, 3, held.Slots)
		require.NotEmpty(t, held.Holder.Hostname)
		require.ErrorContains(t, err, `the 3 slots of "a/b" are held, one of them by "`)

		waiting := make(chan *mutex.Lock, 1)
		go func() {
			l, _ := w.client(mutex.Wait(20*time.Second)).Lock(t.Context(), "a/b", mutex.Slots(2))
			waiting <- l
		}()
		eventually(t, func() bool { return len(tickets(t, w, "a/b")) == 1 })
		<-time.After(time.Second)
		i := slices.Index(names, "a/b/2")
		require.NoError(t, locks[i].Unlock(t.Context()))
		<-time.After(2 * time.Second)
		taken, denied, err := w.client().TryLockAll(t.Context(), []string{"a/b", "free"}, mutex.Slots(3))
		require.NoError(t, err)
		require.Empty(t, denied)
		require.Equal(t, "a/b/2", taken[0].Name(), "of no use to one that gives less")
		require.Contains(t, taken[1].Name(), "free/")
		require.NoError(t, locks[(i+1)%3].Unlock(t.Context()))
		last := <-waiting
		require.Equal(t, locks[(i+1)%3].Name(), last.Name())
		require.NoError(t, w.client().UnlockAll(t.Context(), append(taken, last, locks[(i+2)%3])...))
		require.Empty(t, w.fields())
	})
}

func TestSlotsRefused(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		c := w.client()
		for want, opts := range map[string][]mutex.Option{
			"mutex: Slots: 0 is not 1 to 1000":             {mutex.Slots(0)},
			"mutex: Slots: -1 is not 1 to 1000":            {mutex.Slots(-1)},
			"mutex: Slots: 1001 is not 1 to 1000":          {mutex.Slots(1001)},
			"mutex: Slots and Identity exclude each other": {mutex.Slots(2), mutex.Identity("i")},
			`mutex: lock name "a//" has an empty segment`:  {mutex.Slots(2)},
		} {
			name := "a"
			if strings.Contains(want, "a//") {
				name = "a//"
			}
			_, err := c.TryLock(t.Context(), name, opts...)
			require.EqualError(t, err, want)
		}
		_, err := mutex.New(w.etcd, mutex.Slots(2))
		require.EqualError(t, err, "mutex: Slots is not an option of New")
		require.Empty(t, w.fields())
	})
}

// What is wrong with etcd is said also where that which is read first has no answer.
func TestSlotsOfAnUnreachableEtcd(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		link.Set(memetcd.Unreachable())
		_, err := c.TryLock(t.Context(), "a", mutex.Slots(2))
		require.ErrorIs(t, err, mutex.ErrUnreachable)
		_, err = c.Lock(t.Context(), "a", mutex.Slots(2), mutex.Wait(time.Minute))
		require.ErrorIs(t, err, mutex.ErrUnreachable)
	})
}

// As many slots as there may be are read in one request.
func TestManySlots(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		var requests atomic.Int64
		c := counted(w, &requests)
		free := rand.IntN(1000)
		for slot := range 1000 {
			if slot != free {
				w.txn(clientv3.OpPut(fmt.Sprint(w.prefix, "a/", slot, "/uuid"), "u"))
			}
		}
		l, err := c.Lock(t.Context(), "a", mutex.Slots(1000))
		require.NoError(t, err)
		require.EqualValues(t, 2, requests.Load())
		require.Equal(t, fmt.Sprint("a/", free), l.Name())
		_, err = c.TryLock(t.Context(), "a", mutex.Slots(1000))
		require.ErrorIs(t, err, mutex.ErrHeld)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// Slots that are freed at once wake as many waiters, none of which waits for one before it to be passed over.
func TestSlotsFreedAtOnce(t *testing.T) {
	for _, slots := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				c := w.client()
				var held []*mutex.Lock
				for range slots {
					held = append(held, w.lock(c, "a", mutex.Slots(slots)))
				}
				q := &line{w: w, opts: []mutex.Option{mutex.Slots(slots)}, taken: make(chan taken, 10)}
				q.ctx, q.stop = context.WithCancel(t.Context())
				for who := range slots + 1 {
					q.join(who, w.client())
				}
				began := time.Now()
				require.NoError(t, c.UnlockAll(t.Context(), held...))
				var served []int
				for range slots {
					who, _ := q.next()
					served = append(served, who)
					defer func(l *mutex.Lock) { _ = l.Unlock(context.Background()) }(q.holder)
				}
				took := time.Since(began)
				t.Logf("%d slots were taken within %v", slots, took)
				if realEtcd == "" {
					require.Less(t, took, time.Duration(slots)*100*time.Millisecond)
				}
				slices.Sort(served)
				require.Len(t, slices.Compact(served), slots)
				require.Equal(t, slots-1, served[slots-1], "the last in the queue is not served before the others")
				q.stop()
				require.ErrorIs(t, (<-q.taken).err, mutex.ErrHeld)
			})
		})
	}
}

// The slot of an attempt that is executed late is released, while another slot is held.
func TestSlotTakenLate(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour))
		other, admin := connect()
		first := make(chan string, 1)
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Compare) > 0 {
				select {
				case first <- strings.TrimSuffix(strings.TrimPrefix(string(txn.Compare[0].Key), "/mutexes/"), "/uuid"):
					return memetcd.Faults{Request: 20 * time.Second} // the client gives up, and it is executed
				default:
				}
			}
			return memetcd.Faults{}
		})
		got := make(chan *mutex.Lock, 1)
		go func() {
			l, _ := c.TryLock(t.Context(), "a", mutex.Slots(2))
			got <- l
		}()
		<-time.After(time.Second)
		slot := <-first
		first <- slot
		taken, err := other.TryLock(t.Context(), slot)
		require.NoError(t, err)
		l := <-got
		require.NotNil(t, l)
		require.NotEqual(t, slot, l.Name())
		require.NoError(t, taken.Unlock(t.Context()))
		require.Equal(t, l.UUID(), nextUUID(t, admin, slot), "it was executed")
		<-time.After(55 * time.Second) // it is not renewed at this instant
		require.Empty(t, uuidIn(t, admin, slot))
		require.NoError(t, l.Held())
		require.Equal(t, l.UUID(), uuidIn(t, admin, l.Name()))
		sent := count[*etcdserverpb.TxnRequest](link)
		require.NoError(t, l.Unlock(t.Context()))
		<-time.After(time.Hour)
		require.EqualValues(t, 1, sent.Load(), "of its own slot no attempt was left")
	})
}

// An attempt without an answer is repeated with the same slot, which it may have taken.
func TestSlotTakenWithoutAnAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		for range 20 {
			first := ""
			link.OnRequest(func(req memetcd.Message) memetcd.Faults {
				txn, ok := req.(*etcdserverpb.TxnRequest)
				if !ok || len(txn.Compare) == 0 || first != "" {
					return memetcd.Faults{}
				}
				first = string(txn.Compare[0].Key)
				return memetcd.Faults{HoldAnswers: true}
			})
			l, err := c.TryLock(t.Context(), "a", mutex.Slots(3))
			require.NoError(t, err)
			require.Equal(t, first, "/mutexes/"+l.Name()+"/uuid")
			require.NoError(t, l.Unlock(t.Context()))
		}
	})
}

// A waiter finds the slot that an attempt has taken late, while another was tried.
func TestWaiterTakesASlotLate(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour))
		other, admin := connect(mutex.KeepAlive(time.Hour))
		held := map[string]*mutex.Lock{}
		for range 2 {
			l, err := other.TryLock(t.Context(), "a", mutex.Slots(2))
			require.NoError(t, err)
			held[l.Name()] = l
		}
		take := func(name string) {
			l, err := other.TryLock(t.Context(), name)
			require.NoError(t, err)
			held[name] = l
		}
		free := func(name string) { require.NoError(t, held[name].Unlock(t.Context())) }
		got := make(chan *mutex.Lock, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		go func() {
			l, _ := c.Lock(ctx, "a", mutex.Slots(2))
			got <- l
		}()
		<-time.After(time.Second)
		delayAttempt(link, 12*time.Second)
		free("a/0")
		<-time.After(100 * time.Millisecond)
		take("a/0")
		<-time.After(6 * time.Second) // it was repeated
		delayAttempt(link, 100*time.Millisecond)
		free("a/1")
		<-time.After(50 * time.Millisecond)
		take("a/1")
		<-time.After(time.Second) // this slot is tried now
		link.Set(memetcd.Faults{HoldAnswers: true})
		<-time.After(time.Second)
		free("a/0")
		eventually(t, func() bool { return uuidIn(t, admin, "a/0") != "" })
		late := uuidIn(t, admin, "a/0")
		<-time.After(12 * time.Second) // its lease is lost
		link.Set(memetcd.Faults{})
		l := <-got
		require.NotNil(t, l)
		require.Equal(t, "a/0", l.Name())
		require.Equal(t, late, l.UUID())
		require.NoError(t, l.Unlock(t.Context()))
		free("a/1")
	})
}

// A lock with an empty uuid, which any client may have written, is held.
func TestEmptyUUID(t *testing.T) {
	eachSlots(t, func(t *testing.T, slots int) {
		on(t, func(t *testing.T, w world) {
			var opts []mutex.Option
			names := []string{"a"}
			if slots > 0 {
				opts, names = append(opts, mutex.Slots(slots)), nil
				for i := range slots {
					names = append(names, fmt.Sprint("a/", i))
				}
			}
			for _, name := range names {
				w.txn(clientv3.OpPut(w.prefix+name+"/uuid", ""))
			}
			var requests atomic.Int64
			c := counted(w, &requests)
			_, err := c.TryLock(t.Context(), "a", opts...)
			require.ErrorIs(t, err, mutex.ErrHeld)
			got := make(chan *mutex.Lock, 1)
			go func() {
				l, _ := c.Lock(t.Context(), "a", opts...)
				got <- l
			}()
			<-time.After(20 * time.Second)
			require.Less(t, requests.Load(), int64(20))
			w.txn(clientv3.OpDelete(w.prefix + names[0] + "/uuid"))
			l := <-got
			require.NoError(t, l.Unlock(t.Context()))
		})
	})
}

// Where nobody may put tickets, slots are taken all the same.
func TestSlotsWithoutTickets(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		var working, most atomic.Int64
		var all errgroup.Group
		for range 7 {
			etcd := w.connect()
			r := refusing{KV: etcd.KV, Lease: etcd.Lease, txn: rpctypes.ErrPermissionDenied}
			etcd.KV, etcd.Lease = r, r
			c := w.over(etcd, mutex.Observe(nil))
			all.Go(func() error {
				return c.WithLock(t.Context(), "a", func(context.Context) error {
					if n := working.Add(1); n > most.Load() {
						most.Store(n)
					}
					<-time.After(time.Second)
					working.Add(-1)
					return nil
				}, mutex.Slots(3), mutex.Wait(time.Minute))
			})
		}
		began := time.Now()
		require.NoError(t, all.Wait())
		require.EqualValues(t, 3, most.Load())
		if realEtcd == "" {
			require.Less(t, time.Since(began), 6*time.Second)
		}
	})
}

// TestSlotsUnderLoad: never more hold the name than there are slots, and all slots are used.
func TestSlotsUnderLoad(t *testing.T) {
	const slots, waiters, rounds = 4, 30, 4
	on(t, func(t *testing.T, w world) {
		var requests, working, most atomic.Int64
		var all errgroup.Group
		used := [slots]atomic.Int64{}
		began := time.Now()
		for id := range uint64(waiters) {
			c, r := counted(w, &requests), rand.New(rand.NewPCG(id, 22))
			all.Go(func() error {
				for range rounds {
					l, err := c.Lock(t.Context(), "a", mutex.Slots(slots))
					if err != nil {
						return err
					}
					n := working.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
						continue
					}
					used[l.Name()[len("a/")]-'0'].Add(1)
					<-time.After(time.Duration(r.IntN(100)) * time.Millisecond)
					working.Add(-1)
					if err := l.Unlock(t.Context()); err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, all.Wait())
		require.EqualValues(t, slots, most.Load())
		for i := range used {
			require.NotZero(t, used[i].Load())
		}
		took, each := time.Since(began)/(waiters*rounds), float64(requests.Load())/(waiters*rounds)
		t.Logf("%v and %.1f requests for each lock", took, each)
		require.Less(t, each, 9.0)
		require.Empty(t, w.fields())
	})
}

// TestDeafWaiterForSlots: the renewals of other slots do not keep a waiter from looking once a minute.
func TestDeafWaiterForSlots(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		etcd := q.w.connect()
		etcd.Watcher = muted{etcd.Watcher}
		q.join(1, q.w.over(etcd))
		<-time.After(10 * time.Minute)
		q.release()
		_, after := q.next()
		require.Less(t, after, 2*time.Minute)
		q.release()
	})
}

// muted shows no deletions.
type muted struct{ clientv3.Watcher }

func (w muted) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return w.Watcher.Watch(ctx, key, append(opts, clientv3.WithFilterDelete())...)
}
