package waiters_test

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// graph has the waiters of names, and the uuids of locks that are held.
type graph struct {
	waiting []api.DeadlockFlow
	uuids   map[string]string
}

// found returns the deadlocks, each as a set of bits of flows, the first of which is in first.
func (g graph) found() (sets, first []int) {
	for _, d := range waiters.Find(g.waiting, func(lock string) string { return g.uuids[lock] }) {
		set := 0
		for i, f := range d.Flows {
			n, _ := strconv.Atoi(f.Key)
			if set |= 1 << n; i == 0 {
				first = append(first, n)
			}
		}
		sets = append(sets, set)
	}
	return sets, first
}

// needs returns, for each flow, the holders of each lock of which it needs one, as sets.
func (g graph) needs() [][]int {
	needs := make([][]int, len(g.waiting))
	for i, f := range g.waiting {
		locks := []string{f.Lock}
		if f.Slots > 0 {
			locks = nil
			for slot := range f.Slots {
				locks = append(locks, fmt.Sprint(f.Lock, "/", slot))
			}
		}
		for _, lock := range locks {
			holders := 0
			for j, h := range g.waiting {
				if uuid := g.uuids[lock]; uuid != "" && slices.Contains(h.Holds, uuid) {
					holders |= 1 << j
				}
			}
			needs[i] = append(needs[i], holders)
		}
	}
	return needs
}

// deadlocked reports whether each flow of a set waits for locks that are held by flows of the set only.
func deadlocked(set int, needs [][]int) bool {
	for i := range needs {
		if set&(1<<i) != 0 && slices.ContainsFunc(needs[i], func(h int) bool { return h == 0 || h&^set != 0 }) {
			return false
		}
	}
	return set != 0
}

// judge tries all sets of flows.
func (g graph) judge(t *testing.T, seed uint64) (deadlock, several bool) {
	needs := g.needs()
	found, first := g.found()
	stuck := 0
	for set := range 1 << len(needs) {
		if deadlocked(set, needs) {
			stuck |= set
			require.True(t, slices.ContainsFunc(found, func(f int) bool { return f&^set == 0 }), "seed %d: in %b is no deadlock found: %+v", seed, set, g)
		}
	}
	for i, set := range found {
		require.True(t, deadlocked(set, needs), "seed %d: phantom %b: %+v", seed, set, g)
		reached := 0
		for range needs {
			for j := range needs {
				if j == first[i] || reached&(1<<j) != 0 {
					for _, h := range needs[j] {
						reached |= h
					}
				}
			}
		}
		require.Equal(t, set, reached, "seed %d: its first flow waits for all of it, itself included: %+v", seed, g)
		several = several || bits.OnesCount(uint(set)) > 1
	}
	require.Equal(t, stuck != 0, len(found) > 0)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(first))), len(found), "each cycle once")
	return stuck != 0, several
}

// random is a graph of few flows and locks: plain ones, slots, some that no waiter holds, and uuids of before.
func random(r *rand.Rand) (g graph) {
	g.uuids = map[string]string{}
	var uuids []string
	for _, lock := range []string{"a", "b", "c", "s/0", "s/1", "s/2"} {
		if r.IntN(6) > 0 {
			g.uuids[lock] = "u-" + lock
			uuids = append(uuids, g.uuids[lock])
		}
	}
	uuids = append(uuids, "old")
	for i := range 1 + r.IntN(7) {
		w := api.Waiter{Key: fmt.Sprint(i), Revision: int64(i), Ticket: protocol.Ticket{UUID: fmt.Sprint("u", i)}}
		f := api.DeadlockFlow{Lock: []string{"a", "b", "c", "s"}[r.IntN(4)]}
		if f.Lock == "s" {
			w.Slots = 1 + r.IntN(3)
		}
		for range r.IntN(3) {
			u := uuids[r.IntN(len(uuids))]
			if r.IntN(8) > 0 && slices.ContainsFunc(g.waiting, func(f api.DeadlockFlow) bool { return slices.Contains(f.Holds, u) }) {
				continue // mostly, a lock has one holder
			}
			w.Holds = append(w.Holds, u)
		}
		f.Waiter = w
		g.waiting = append(g.waiting, f)
	}
	return g
}

func TestDeadlocksOfRandomGraphs(t *testing.T) {
	t.Parallel()
	deadlocks, several := 0, 0
	for seed := range uint64(20_000) {
		one, more := random(rand.New(rand.NewPCG(seed, 22))).judge(t, seed)
		if one {
			deadlocks++
		}
		if more {
			several++
		}
	}
	require.Greater(t, deadlocks, 2000)
	require.Greater(t, several, 1000)
}

func words(all []api.Deadlock) (words []string) {
	for _, d := range all {
		words = append(words, d.String())
	}
	return words
}

// The flows of a cycle are in its order: each waits for what the next one holds.
func TestDeadlocksInWords(t *testing.T) {
	t.Parallel()
	waits := func(lock, host string, uuids ...string) api.DeadlockFlow {
		return api.DeadlockFlow{Lock: lock, Waiter: api.Waiter{Ticket: protocol.Ticket{Hostname: host, Owner: "o", PID: "1", Holds: uuids}}}
	}
	require.Equal(t, []string{
		"o on h3 (pid 1) holds c and waits for a; o on h1 (pid 1) holds a and waits for b; o on h2 (pid 1) holds b and waits for c",
		"o on h4 (pid 1) holds self and waits for self",
	}, words(waiters.Find([]api.DeadlockFlow{
		waits("a", "h3", "u-c"), waits("a", "behind", "u-x"), waits("b", "h1", "u-a", "u-old"), waits("c", "h2", "u-b"), waits("self", "h4", "u-self"),
	}, func(lock string) string { return "u-" + lock })))
	require.Equal(t, "an unnamed process on an unknown host (pid unknown) holds \"\" and waits for \"\"", api.DeadlockFlow{}.String())
}

// Each of many tickets claims to hold what all wait for.
func TestDeadlocksOfHostileTickets(t *testing.T) {
	t.Parallel()
	var all []api.DeadlockFlow
	for i := range waiters.MaxTickets {
		all = append(all, api.DeadlockFlow{Lock: "a", Waiter: api.Waiter{Key: fmt.Sprint(i), Ticket: protocol.Ticket{Holds: []string{"u", "v"}}}})
	}
	found := waiters.Find(all, func(string) string { return "u" })
	require.Len(t, found, 1)
	require.Len(t, found[0].Flows, 20)
	require.Equal(t, waiters.MaxTickets-20, found[0].More)
}

// Tickets for all slots of a large pool cost each lock one look, and no more memory or time than as many tickets for a lock.
func TestDeadlocksOfHostileTicketsForSlots(t *testing.T) {
	t.Parallel()
	const slots = 640
	for _, last := range []string{"", "free", "copy"} { // another flow holds the last slot, waits for this and proceeds
		var all []api.DeadlockFlow
		for i := range waiters.MaxTickets {
			f := api.DeadlockFlow{Lock: "a", Waiter: api.Waiter{Key: fmt.Sprint(i), Ticket: protocol.Ticket{Slots: slots}}}
			for j := range 64 {
				f.Holds = append(f.Holds, fmt.Sprint("u", (i*64+j)%slots))
			}
			if last != "" && i%10 == 9 {
				f.Lock, f.Slots = last, 0
			}
			all = append(all, f)
		}
		looks, began := 0, time.Now()
		found := waiters.Find(all, func(lock string) string {
			looks++
			if lock == "copy" {
				return "u0"
			}
			slot, _ := strings.CutPrefix(lock, "a/")
			return "u" + slot
		})
		require.LessOrEqual(t, looks, slots+1)
		require.Less(t, time.Since(began), time.Minute) // it is less than a second
		if last != "" {
			require.Empty(t, found, last)
			continue
		}
		require.Len(t, found, 1)
		require.Equal(t, waiters.MaxTickets-20, found[0].More)
	}
}

// Of many deadlocks the first are found.
func TestManyDeadlocks(t *testing.T) {
	t.Parallel()
	var all []api.DeadlockFlow
	for i := range waiters.MaxTickets {
		name := fmt.Sprint(i)
		all = append(all, api.DeadlockFlow{Lock: name, Waiter: api.Waiter{Key: name, Ticket: protocol.Ticket{Holds: []string{name}}}})
	}
	found := waiters.Find(all, func(lock string) string { return lock })
	require.Len(t, found, 100)
	require.Equal(t, "99", found[99].Flows[0].Lock)
}

// A lock that cannot be read in time hides no deadlock of others.
func TestDeadlocksBesideUnreadLocks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"a", "b", "slow"} {
			w.hold(name, "u-"+name)
		}
		w.link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if r, ok := req.(*etcdserverpb.TxnRequest); ok && strings.Contains(r.String(), layout.Key("slow", "uuid")) {
				return memetcd.Unreachable()
			}
			return memetcd.Faults{}
		})
		w.write("b", "1", func(t *protocol.Ticket) { t.Holds = []string{"u-a"} })
		w.write("a", "2", func(t *protocol.Ticket) { t.Holds = []string{"u-b"} })
		for i := range 126 { // which are read with those
			w.write(fmt.Sprint("free/", i), fmt.Sprint(3+i), func(t *protocol.Ticket) { t.Holds = []string{"u-other"} })
		}
		w.write("slow", "129", func(t *protocol.Ticket) { t.Holds = []string{"u-other"} })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.RunDeadlocks(ctx) }()
		<-time.After(8 * time.Second)
		require.Len(t, w.Deadlocks(), 1)
		cancel()
		require.NoError(t, <-ended)
	})
}

// TestDeadlocksAreReadTogether: many locks, or many slots, cost few requests.
func TestDeadlocksAreReadTogether(t *testing.T) {
	const n = 300
	for name, waitsFor := range map[string]func(i int) (lock string, slots int){
		"pool": func(int) (string, int) { return "pool", n },
		"lock": func(i int) (string, int) { return fmt.Sprint("lock/", (i+1)%n), 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				for i := range n {
					w.hold(fmt.Sprint(name, "/", i), fmt.Sprint("u-", i))
					lock, slots := waitsFor(i)
					w.write(lock, fmt.Sprint(i), func(t *protocol.Ticket) { t.Holds, t.Slots = []string{fmt.Sprint("u-", i)}, slots })
				}
				var sent int
				w.link.OnRequest(func(req memetcd.Message) memetcd.Faults {
					switch req.(type) {
					case *etcdserverpb.TxnRequest, *etcdserverpb.RangeRequest:
						sent++
					}
					return memetcd.Faults{}
				})
				found, err := waiters.ReadDeadlocks(t.Context(), w.link.Client, layout, prefix, time.Second)
				w.link.OnRequest(nil)
				require.NoError(t, err)
				require.Len(t, found, 1)
				require.Equal(t, n, len(found[0].Flows)+found[0].More)
				require.LessOrEqual(t, sent, 8)
			})
		})
	}
}

// A deadlock is one that etcd shows at one revision, and is said once.
func TestDeadlocksAreConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.RunDeadlocks(ctx) }()
		defer func() {
			cancel()
			require.NoError(t, <-ended)
		}()
		shows := func(want ...string) {
			t.Helper()
			<-time.After(3 * time.Second)
			synctest.Wait()
			require.Equal(t, want, words(w.Deadlocks()))
			require.Equal(t, len(want), w.Stats(0).Deadlocks)
		}
		holds := func(uuids ...string) func(*protocol.Ticket) { return func(t *protocol.Ticket) { t.Holds = uuids } }
		w.hold("a", "u-a")
		w.hold("b", "u-b")
		w.write("b", "1", holds("u-a"))
		shows()
		w.write("a", "2", holds("u-b", "u-a-before"))
		const deadlock = "an unnamed process on h1 (pid unknown) holds a and waits for b; an unnamed process on h2 (pid unknown) holds b and waits for a"
		shows(deadlock)
		require.Equal(t, time.Unix(42, 0), w.Deadlocks()[0].Due)
		require.Len(t, w.log.Lines(api.LogDeadlock), 1)
		read, err := waiters.ReadDeadlocks(t.Context(), w.client, layout, prefix, time.Second)
		require.NoError(t, err)
		require.Equal(t, []string{deadlock}, words(read))
		w.remove("a//2")
		shows()

		// The daemon still believes in the lock that is gone from etcd.
		_, err = w.client.Delete(t.Context(), "/mutexes/b/uuid")
		require.NoError(t, err)
		w.write("a", "3", holds("u-b"))
		shows()
		_, err = w.client.Put(t.Context(), "/mutexes/b/uuid", "u-b")
		require.NoError(t, err)
		shows(strings.ReplaceAll(deadlock, "h2", "h3"))
		require.Len(t, w.log.Lines(api.LogDeadlock), 2)
	})
}

// TestDeadlocksOfClients: with slots there is a deadlock only once the holders of all of them wait.
func TestDeadlocksOfClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))) // clients have no locks before 2001
		cluster := memetcd.New(memetcd.Options{})
		defer func() { require.NoError(t, cluster.Close()) }()
		link, err := cluster.Connect()
		require.NoError(t, err)
		locks, err := mutex.New(link.Client, mutex.KeepAlive(time.Hour), mutex.Owner("o"))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		begin := func(proceeds <-chan struct{}, first, second string, opts ...mutex.Option) {
			slots := func(name string) []mutex.Option {
				if name == "pool" {
					return append(opts, mutex.Slots(2))
				}
				return opts
			}
			all.Go(func() {
				_ = locks.WithLock(ctx, first, func(ctx context.Context) error {
					<-proceeds
					return locks.WithLock(ctx, second, func(context.Context) error { return nil }, slots(second)...)
				}, slots(first)...)
			})
			<-time.After(2 * time.Second)
		}
		shows := func(flows int) {
			t.Helper()
			found, err := waiters.ReadDeadlocks(t.Context(), link.Client, layout, prefix, time.Second)
			require.NoError(t, err)
			if flows == 0 {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Len(t, found[0].Flows, flows)
			require.Contains(t, found[0].String(), "holds pool/0")
			require.Contains(t, found[0].String(), "holds pool/1")
			require.Contains(t, found[0].String(), "waits for pool")
		}
		next := func(proceeds chan struct{}) {
			close(proceeds)
			<-time.After(2 * time.Second)
		}
		cycle, last := make(chan struct{}), make(chan struct{})
		begin(cycle, "b", "pool")
		begin(cycle, "pool", "b")
		begin(last, "pool", "b")
		next(cycle)
		shows(0)
		next(last)
		shows(3)
		stop()
		all.Wait()
		shows(0)
	})
}
