//go:build go1.25

package mutex_test

import (
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// keysOf returns the keys of a lock by field.
func keysOf(t *testing.T, link *memetcd.Link, name string) map[string]*mvccpb.KeyValue {
	t.Helper()
	resp, err := link.Get(t.Context(), "/mutexes/"+name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	keys := map[string]*mvccpb.KeyValue{}
	for _, kv := range resp.Kvs {
		keys[string(kv.Key[len("/mutexes/"+name+"/"):])] = kv
	}
	return keys
}

func question(t *testing.T, link *memetcd.Link, l *mutex.Lock) {
	t.Helper()
	_, err := link.Put(t.Context(), protocol.QuestionKey("/unlocker/ask/mutexes/", l.Name(), l.UUID()), "anything, \x00 and no JSON")
	require.NoError(t, err)
}

// answers waits for a while, and returns how often the lock has answered.
func answers(t *testing.T, link *memetcd.Link, name string, after time.Duration) int64 {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if kv := keysOf(t, link, name)["answered_at"]; kv != nil {
		return kv.Version
	}
	return 0
}

// TestAnswer asks the holder of a lock that renews: it answers within a second with what it does now, and nothing else of
// the lock is written.
func TestAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, _ := connect(mutex.KeepAlive(time.Hour), mutex.Expect(30*time.Minute))
		_, asker := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		other, err := c.Lock(t.Context(), "a/b", mutex.Backtrace(false), mutex.OnAsk(func() string { return "1 of 2" }))
		require.NoError(t, err)
		require.NoError(t, l.Alive(t.Context(), mutex.Status("7 of 9")))
		time.Sleep(10 * time.Second)
		before, deadline := keysOf(t, asker, "a"), l.Deadline()
		require.NotContains(t, before, "answered_at")
		question(t, asker, l)
		asked := time.Now()
		require.EqualValues(t, 1, answers(t, asker, "a", time.Second))
		after := keysOf(t, asker, "a")
		require.Equal(t, after["answered_at"].ModRevision, after["stack"].ModRevision, "one transaction")
		require.Contains(t, string(after["stack"].Value), "goroutine ")
		require.Equal(t, "7 of 9", string(after["status"].Value))
		require.WithinDuration(t, asked, seconds(t, string(after["answered_at"].Value)), time.Second)
		for field, kv := range before {
			if field != "status" && field[0] != 'b' { // those of a/b are below a
				require.Equal(t, kv, after[field], "%s: an answer is no renewal", field)
			}
		}
		require.Len(t, after, len(before)+2)
		require.Equal(t, deadline, l.Deadline())
		require.NotContains(t, keysOf(t, asker, "a/b"), "answered_at", "it was not asked")

		question(t, asker, other)
		require.EqualValues(t, 1, answers(t, asker, "a/b", time.Second))
		require.Equal(t, "1 of 2", string(keysOf(t, asker, "a/b")["status"].Value))
		require.NotContains(t, keysOf(t, asker, "a/b"), "stack")
		require.NoError(t, c.UnlockAll(t.Context(), l, other))
		require.Empty(t, keysOf(t, asker, "a"), "what an answer has written goes with the lock")
		question(t, asker, l)
		require.Zero(t, answers(t, asker, "a", time.Minute), "released")
	})
}

// TestAnswerIsAtOnce measures the time to the first answer, and to one that was asked for too early.
func TestAnswerIsAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, _ := connect(mutex.KeepAlive(time.Hour))
		_, asker := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(2500 * time.Millisecond)
		question(t, asker, l)
		require.EqualValues(t, 1, answers(t, asker, "a", 10*time.Millisecond))
		time.Sleep(1300 * time.Millisecond)
		question(t, asker, l)
		require.EqualValues(t, 1, answers(t, asker, "a", 3600*time.Millisecond))
		require.EqualValues(t, 2, answers(t, asker, "a", 200*time.Millisecond))
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestAnswerAfterOneThatHung calls the function again once it has returned.
func TestAnswerAfterOneThatHung(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		calls := 0
		c, _ := connect(mutex.KeepAlive(time.Hour), mutex.OnAsk(func() string {
			calls++
			if calls == 2 {
				<-time.After(2 * time.Second)
			}
			return strconv.Itoa(calls)
		}))
		_, asker := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		for _, want := range []string{"1", "1", "3", "4"} { // the second has none, as nothing was said before
			question(t, asker, l)
			answers(t, asker, "a", 6*time.Second)
			require.Equal(t, want, string(keysOf(t, asker, "a")["status"].Value))
		}
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestAnswersAreBounded asks all the time.
func TestAnswersAreBounded(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		var asked, hangs atomic.Int32
		hang := make(chan struct{})
		c, _ := connect(mutex.KeepAlive(time.Hour))
		_, asker := connect()
		l, err := c.Lock(t.Context(), "a", mutex.OnAsk(func() string {
			return strconv.Itoa(int(asked.Add(1)))
		}))
		require.NoError(t, err)
		hanging, err := c.Lock(t.Context(), "hangs", mutex.OnAsk(func() string {
			hangs.Add(1)
			<-hang
			return "too late"
		}))
		require.NoError(t, err)
		time.Sleep(time.Second)
		for range 600 {
			question(t, asker, l)
			question(t, asker, hanging)
			time.Sleep(100 * time.Millisecond)
		}
		require.InDelta(t, 12, answers(t, asker, "a", 0), 1)
		last := asked.Load()
		require.LessOrEqual(t, answers(t, asker, "a", time.Minute), int64(last+1))
		require.LessOrEqual(t, asked.Load(), last+1, "what was asked meanwhile has one answer")
		require.InDelta(t, 12, answers(t, asker, "hangs", 0), 2)
		require.EqualValues(t, 1, hangs.Load(), "a status that hangs is not asked for again")
		require.NotContains(t, keysOf(t, asker, "hangs"), "status")
		close(hang)
		require.NoError(t, c.UnlockAll(t.Context(), l, hanging))
	})
}

// TestAnswersAfterFaults asks after what breaks watches.
func TestAnswersAfterFaults(t *testing.T) {
	for name, fault := range map[string]func(*testing.T, *memetcd.Cluster, *memetcd.Link){
		"compaction": func(t *testing.T, _ *memetcd.Cluster, link *memetcd.Link) {
			resp, err := link.Put(t.Context(), "/x", "")
			require.NoError(t, err)
			_, err = link.Compact(t.Context(), resp.Header.Revision)
			require.NoError(t, err)
			link.Break()
		},
		"connection": func(_ *testing.T, _ *memetcd.Cluster, link *memetcd.Link) { link.Break() },
		"outage": func(_ *testing.T, _ *memetcd.Cluster, link *memetcd.Link) {
			link.Set(memetcd.Unreachable())
			time.Sleep(20 * time.Second)
			link.Set(memetcd.Faults{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
				c, link := connect(mutex.KeepAlive(time.Hour))
				_, asker := connect()
				l, err := c.Lock(t.Context(), "a")
				require.NoError(t, err)
				for n := range int64(3) {
					time.Sleep(10 * time.Second)
					fault(t, cluster, link)
					question(t, asker, l)
					require.Equal(t, n+1, answers(t, asker, "a", 3*time.Second))
				}
				require.NoError(t, l.Unlock(t.Context()))
			})
		})
	}
}

// TestNoRightToReadQuestions takes and renews locks without that right: said once, and tried again.
func TestNoRightToReadQuestions(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		var refused atomic.Int64
		core := zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(io.Discard), zap.WarnLevel)
		link, err := cluster.Connect(func(c *clientv3.Config) {
			c.Logger = zap.New(core, zap.Hooks(func(zapcore.Entry) error { refused.Add(1); return nil }))
		})
		require.NoError(t, err)
		asker, err := cluster.Connect()
		require.NoError(t, err)
		link.Allow("/mutexes/", "/mutexes0")
		watches := 0
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if w, ok := req.(*etcdserverpb.WatchRequest); ok && w.GetCreateRequest() != nil && strings.HasPrefix(string(w.GetCreateRequest().Key), "/unlocker/") {
				watches++
			}
			return memetcd.Faults{}
		})
		log, said := logged()
		c := newClient(t, link.Client, mutex.KeepAlive(time.Hour), log)
		locks, _, err := c.TryLockAll(t.Context(), numbered("", 20))
		require.NoError(t, err)
		time.Sleep(30 * time.Minute)
		require.Len(t, said(), 1)
		require.Contains(t, said()[0], "no right to read questions under /unlocker/ask/mutexes/")
		require.Less(t, refused.Load(), int64(20+2*3), "one lock tries for all, but for the first time; etcd's client logs each refusal")
		require.Zero(t, watches, "no watch is refused")
		for _, l := range locks {
			require.NoError(t, l.Held())
		}
		link.Allow("/unlocker/ask/", "/unlocker/ask0")
		time.Sleep(12 * time.Minute)
		question(t, asker, locks[0])
		require.EqualValues(t, 1, answers(t, asker, "0", time.Second))
		require.NoError(t, c.UnlockAll(t.Context(), locks...))
	})
}
