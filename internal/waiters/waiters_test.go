package waiters_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const prefix = "/unlocker/waiters/mutexes/"

var layout, _ = protocol.NewLayout("/mutexes/")

// world is an etcd in memory under virtual time, and the tickets in it as they are followed.
type world struct {
	*waiters.Waiters
	t      *testing.T
	client *clientv3.Client // which no fault affects
	link   *memetcd.Link
	log    etcdtest.Log

	// held are the uuids of locks that the daemon knows.
	held sync.Map

	mu      sync.Mutex
	waited  []float64
	changes int
}

func (w *world) Observe(seconds float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waited = append(w.waited, seconds)
}

func (w *world) observed() []float64 {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.waited)
}

// bubble runs a test. The edits are made before the tickets are followed.
func bubble(t *testing.T, test func(*testing.T, *world), edits ...func(*world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		w := &world{t: t}
		direct, err := cluster.Connect()
		require.NoError(t, err)
		w.client = direct.Client
		w.link, err = cluster.Connect(func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" })
		require.NoError(t, err)
		for _, edit := range edits {
			edit(w)
		}
		w.Waiters, err = waiters.New(waiters.Options{
			FollowerOptions: etcd.FollowerOptions{
				Client: w.link.Client, Prefix: prefix, RequestTimeout: 5 * time.Second, Freshness: 10 * time.Second,
				Explain: func(err error) error { return err }, Logger: w.log.Logger(),
			},
			Changed: func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.changes++
			},
			WaitDuration: w,
			Layout:       layout,
			Holder: func(_ context.Context, lock string) (string, time.Time) {
				uuid, _ := w.held.LoadOrStore(lock, "")
				return uuid.(string), time.Unix(42, 0)
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-ended)
		})
		<-time.After(time.Second)
		synctest.Wait()
		test(t, w)
	})
}

// hold takes a lock, in etcd and as the daemon knows it.
func (w *world) hold(lock, uuid string) {
	w.t.Helper()
	_, err := w.client.Put(w.t.Context(), layout.Key(lock, "uuid"), uuid)
	require.NoError(w.t, err)
	w.held.Store(lock, uuid)
}

// write writes the ticket of a name, whose uuid is its own key with a u before it.
func (w *world) write(name, key string, edits ...func(*protocol.Ticket)) {
	w.t.Helper()
	ticket := protocol.Ticket{UUID: "u" + key, Hostname: "h" + key, Since: time.Now()}
	for _, edit := range edits {
		edit(&ticket)
	}
	w.put(name+"//"+key, ticket.Value())
}

func (w *world) put(key, value string) (revision int64) {
	w.t.Helper()
	resp, err := w.client.Put(w.t.Context(), prefix+key, value)
	require.NoError(w.t, err)
	return resp.Header.Revision
}

// remove deletes tickets in one revision.
func (w *world) remove(keys ...string) (revision int64) {
	w.t.Helper()
	var ops []clientv3.Op
	for _, key := range keys {
		ops = append(ops, clientv3.OpDelete(prefix+key))
	}
	resp, err := w.client.Txn(w.t.Context()).Then(ops...).Commit()
	require.NoError(w.t, err)
	return resp.Header.Revision
}

// shows requires the waiters of a lock, in order, by the ends of their keys.
func (w *world) shows(lock string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	var keys []string
	list := w.For(lock, 1000)
	for _, waiter := range list.Waiters {
		keys = append(keys, waiter.Key)
	}
	require.Equal(w.t, want, keys)
	require.Equal(w.t, len(want), w.Count(lock))
	require.Empty(w.t, list.Error)
}

func taken(uuid string, revision int64) *protocol.Lock {
	l := &protocol.Lock{Name: "any"}
	l.Put(protocol.KV{Field: protocol.FieldUUID, Value: []byte(uuid), Create: revision, Mod: revision})
	return l
}

func slots(n int) func(*protocol.Ticket) { return func(t *protocol.Ticket) { t.Slots = n } }

func TestWaitersInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		began := time.Now().UTC()
		w.shows("a", "9")
		<-time.After(time.Minute)
		w.write("a", "5")
		w.write("a", "7")
		w.write("a/b", "1")
		w.shows("a", "9", "5", "7")
		w.shows("a/b", "1")
		w.write("a", "5") // again: it keeps its turn, and its time
		w.shows("a", "9", "5", "7")
		list := w.For("a", 2)
		require.Equal(t, 3, list.Total())
		require.Equal(t, 1, list.More)
		require.Equal(t, began.Add(time.Minute), list.Waiters[1].Seen)
		require.Equal(t, "h5", list.Waiters[1].Hostname)
		require.Equal(t, waiters.Stats{Waiting: 4, Oldest: began.Add(-time.Second), Most: []waiters.Count{{"a", 3}}}, w.Stats(1))
		w.remove("a//9", "a//7")
		w.shows("a", "5")
		w.remove("a//5", "a/b//1")
		w.shows("a")
		require.Zero(t, w.Stats(1))
		require.Empty(t, w.For("a", 1000).Waiters)
	}, func(w *world) { w.write("a", "9") })
}

// Of tickets that were written in one transaction, the one with the lower key is first.
func TestTicketsOfOneRevision(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, err := w.client.Txn(t.Context()).Then(clientv3.OpPut(prefix+"a//2", "x"), clientv3.OpPut(prefix+"a//1", "x")).Commit()
		require.NoError(t, err)
		w.shows("a", "1", "2")
	})
}

// Those who wait for a slot wait for each: the lock of a slot shows them all.
func TestWaitersForSlots(t *testing.T) {
	bubble(t, func(_ *testing.T, w *world) {
		w.write("job", "1", slots(2))
		w.write("job", "2", slots(3))
		w.write("plain", "3")
		for _, slot := range []string{"job", "job/0", "job/1", "job/2"} {
			w.shows(slot, "1", "2")
		}
		for _, other := range []string{"job/3", "job/x", "job/-1", "plain/0", "0"} {
			w.shows(other)
		}
	})
}

// A wait counts if its ticket was deleted in the revision in which the lock got its uuid, whichever is seen first.
func TestWaitsThatEndInALock(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for i := range 6 {
			w.write("a", strconv.Itoa(i))
		}
		<-time.After(3 * time.Second)
		revision := w.remove("a//0")
		require.Empty(t, w.observed())
		w.Acquired(taken("u0", revision))
		require.Equal(t, []float64{3}, w.observed())

		<-time.After(time.Second)
		resp, err := w.client.Get(t.Context(), "x")
		require.NoError(t, err)
		w.Acquired(taken("u1", resp.Header.Revision+1))
		w.remove("a//1")
		require.Equal(t, []float64{3, 4}, w.observed())

		revision = w.remove("a//2", "a//3") // one is passed over by the other
		w.Acquired(taken("u3", revision))
		require.Equal(t, []float64{3, 4, 4}, w.observed())

		w.Acquired(taken("u4", w.remove("a//4")-1)) // given up, after another acquisition
		w.Acquired(taken("other", w.remove("a//5")))
		require.Len(t, w.observed(), 3)
	})
}

// Locks that are taken without a wait take no memory for long, and none where nobody waits.
func TestLocksTakenByOthers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.Acquired(taken("u", 100))
		require.Zero(t, w.Ends())
		w.write("a", "1")
		w.shows("a", "1")
		for i := range 10_000 {
			w.Acquired(taken("u", int64(i)))
			require.LessOrEqual(t, w.Ends(), 1000)
		}
		w.Acquired(taken("u1", w.remove("a//1")))
		require.Len(t, w.observed(), 1)
	})
}

// What any client may have written.
func TestHostileTickets(t *testing.T) {
	long := strings.Repeat("x", protocol.MaxTicket)
	bubble(t, func(t *testing.T, w *world) {
		for key, value := range map[string]string{
			"a//1": "", "b//1": "{", "c//1": `{"uuid": 1}`, "d//1": `{"uuid": "u", "slots": -1}`, "e//1": `{"uuid": "u", "pid": "` + long + `"}`,
			"f//1": `{"hostname": "h"}`, "g//1": strings.Repeat("[", 10_000), "h//1": `null`,
		} {
			w.put(key, value)
			w.shows(key[:1], "1")
			require.True(t, w.For(key[:1], 1).Waiters[0].Unreadable, key)
		}
		for _, key := range []string{"", "/", "//", "a", "a/1", "a//b/c", "//1", "a//", "/a//1", "a//b//", long} {
			w.put(key, `{"uuid": "u"}`)
		}
		require.Equal(t, 8, w.Stats(100).Waiting, "all others are no tickets")
		w.put("z//1", `{"uuid": "u", "hostname": "\u001b[2J`+"\xff"+`", "holds": ["", "`+long[:300]+`", "u-1"]}`)
		w.shows("z", "1")
		waiter := w.For("z", 1).Waiters[0]
		require.Equal(t, "\x1b[2J\uFFFD", waiter.Hostname)
		require.Equal(t, []string{"u-1"}, waiter.Holds)
	})
}

// The tickets of one client do not take the memory of the daemon, and are counted.
func TestTooManyTickets(t *testing.T) {
	const more = 70
	write := func(w *world) {
		var ops []clientv3.Op
		for i := range waiters.MaxTickets + more {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%sa//%06d", prefix, i), `{"uuid": "u"}`))
		}
		for part := range slices.Chunk(ops, 100) {
			_, err := w.client.Txn(w.t.Context()).Then(part...).Commit()
			require.NoError(w.t, err)
		}
	}
	bubble(t, func(t *testing.T, w *world) {
		require.Equal(t, waiters.MaxTickets, w.Count("a"))
		require.Equal(t, waiters.MaxTickets+more, w.Stats(1).Waiting)
		list := w.For("a", 10)
		require.Equal(t, "of the tickets under "+prefix+", 70 are too many or have very long keys", list.Error)
		require.Equal(t, waiters.MaxTickets, list.Total())
		require.Len(t, w.log.Lines(api.LogKeysOmitted), 1)

		read, err := waiters.Read(t.Context(), w.client, prefix, time.Second)
		require.EqualError(t, err, "more than 10000 tickets under "+prefix+": the others are not counted")
		require.Equal(t, waiters.MaxTickets, read.Count("a"))
	}, write)
}

// Without the right to the prefix nobody is known to wait, which is said once.
func TestTicketsThatMayNotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		<-time.After(time.Hour)
		require.Contains(t, w.For("a", 1).Error, "permission denied")
		require.Zero(t, w.Stats(1))
		require.Len(t, w.log.Lines(api.LogPrefixFailed), 1)
		_, err := waiters.Read(t.Context(), w.link.Client, prefix, time.Second)
		require.Equal(t, etcd.PermissionDenied, etcd.Classify(err))
		w.link.Allow(prefix, clientv3.GetPrefixRangeEnd(prefix))
		<-time.After(5 * time.Second)
		w.shows("a", "1")
	}, func(w *world) {
		w.write("a", "1")
		w.link.Allow("/mutexes/", "/mutexes0")
	})
}

// A command reads what the daemon follows, apart from when that was seen.
func TestRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.write("a", "1")
		w.write("a", "0", slots(1))
		synctest.Wait()
		read, err := waiters.Read(t.Context(), w.client, prefix, time.Second)
		require.NoError(t, err)
		want := w.For("a/0", 1000)
		for i := range want.Waiters {
			want.Waiters[i].Seen = time.Time{}
		}
		require.Equal(t, want, read.For("a/0", 1000))
		require.Positive(t, w.changes)
	})
}

func TestNewRequiresItsOptions(t *testing.T) {
	t.Parallel()
	_, err := waiters.New(waiters.Options{})
	require.EqualError(t, err, "waiters: Changed and WaitDuration are required")
}
