//go:build go1.25

package memetcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// world is a cluster in a bubble, with a client under faults and one without.
type world struct {
	*testing.T
	c          *Cluster
	link, well *Link
	began      time.Time
}

func inBubble(t *testing.T, f func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, c: New(Options{Revision: 100, KeepAlive: 14 * time.Second}), began: time.Now()}
		t.Cleanup(func() { require.NoError(t, w.c.Close()) })
		w.link, w.well = w.connect(), w.connect()
		f(w)
	})
}

func (w *world) connect(edits ...func(*clientv3.Config)) *Link {
	l, err := w.c.Connect(edits...)
	require.NoError(w, err)
	return l
}

func (w *world) context(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), d)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) put(key, value string) int64 {
	resp, err := w.well.Put(w.Context(), key, value)
	require.NoError(w, err)
	return resp.Header.Revision
}

func (w *world) exists(key string) bool {
	resp, err := w.well.Get(w.Context(), key)
	require.NoError(w, err)
	return resp.Count > 0
}

func (w *world) at(d time.Duration) { require.Equal(w, d, time.Since(w.began)) }

// events returns the keys of the next response, and its header's revision.
func (w *world) events(watch clientv3.WatchChan) (keys []string, rev int64) {
	resp := <-watch
	require.NoError(w, resp.Err())
	for _, ev := range resp.Events {
		keys = append(keys, string(ev.Kv.Key))
	}
	return keys, resp.Header.Revision
}

func TestRequestsOnABadNetwork(t *testing.T) {
	inBubble(t, func(w *world) {
		w.link.Set(Unreachable())
		_, err := w.link.Put(w.context(5*time.Second), "unsent", "1")
		require.ErrorIs(w, err, context.DeadlineExceeded)
		w.at(5 * time.Second)

		w.link.Set(Faults{HoldAnswers: true})
		_, err = w.link.Put(w.context(5*time.Second), "unanswered", "1")
		require.ErrorIs(w, err, context.DeadlineExceeded)

		w.link.Set(Faults{Refuse: true})
		_, err = w.link.Put(w.Context(), "refused", "1")
		require.Equal(w, codes.Unavailable, status.Code(err))
		w.at(10 * time.Second)

		w.link.Set(Faults{Request: 3 * time.Second, Answer: 2 * time.Second})
		_, err = w.link.Put(w.Context(), "slow", "1")
		require.NoError(w, err)
		w.at(15 * time.Second)
		_, err = w.link.Put(w.context(time.Second), "late", "1")
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.False(w, w.exists("late"), "not yet")

		w.link.Set(Faults{})
		time.Sleep(time.Minute)
		require.False(w, w.exists("unsent"))
		require.True(w, w.exists("unanswered"))
		require.False(w, w.exists("refused"))
		require.True(w, w.exists("late"))
	})
}

func TestFaultsOfOneRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.put("a", "1")
		w.link.OnRequest(func(req Message) Faults {
			_, deletes := req.(*pb.DeleteRangeRequest)
			return Faults{HoldAnswers: deletes}
		})
		_, err := w.link.Delete(w.context(time.Second), "a")
		require.ErrorIs(w, err, context.DeadlineExceeded)
		_, err = w.link.Get(w.Context(), "a")
		require.NoError(w, err)
		require.False(w, w.exists("a"))
	})
}

func TestReset(t *testing.T) {
	inBubble(t, func(w *world) {
		w.link.Set(Faults{HoldAnswers: true})
		time.AfterFunc(time.Second, w.link.Break)
		_, err := w.link.Put(w.Context(), "a", "1")
		require.Equal(w, codes.Unavailable, status.Code(err))
		w.at(time.Second)
		require.True(w, w.exists("a"))

		time.AfterFunc(time.Second, func() { w.link.Set(Faults{}); w.link.Break() })
		_, err = w.link.Get(w.Context(), "a")
		require.NoError(w, err, "the client library asks again")
	})
}

func TestWatchResumesBySilentReconnection(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := w.link.Watch(w.Context(), "", clientv3.WithPrefix())
		w.put("before", "1")
		keys, _ := w.events(watch)
		require.Equal(w, []string{"before"}, keys)

		w.link.Set(Unreachable())
		w.put("during", "1")
		w.put("during too", "1")
		time.Sleep(time.Minute) // the keep-alive has broken the connection
		w.link.Set(Faults{})
		keys, rev := w.events(watch)
		require.Equal(w, []string{"during", "during too"}, keys)
		require.Equal(w, int64(103), rev)
		require.Less(w, time.Since(w.began), time.Minute+time.Second)
	})
}

func TestNoNewConnectionWithoutAnswers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.link.Set(Faults{HoldAnswers: true})
		_, err := w.link.Put(w.Context(), "a", "1")
		require.Equal(w, codes.Unavailable, status.Code(err))
		w.at(14 * time.Second)
		require.True(w, w.exists("a"))
		_, err = w.link.Put(w.context(time.Second), "b", "1")
		require.ErrorIs(w, err, context.DeadlineExceeded)
		w.link.Set(Faults{})
		time.Sleep(time.Minute)
		require.False(w, w.exists("b"))
	})
}

func TestShortSilenceKeepsTheConnection(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := w.link.Watch(w.Context(), "a")
		w.link.Set(Unreachable())
		w.put("a", "1")
		w.put("a", "2")
		time.Sleep(10 * time.Second)
		w.link.Set(Faults{})
		_, rev := w.events(watch)
		require.Equal(w, int64(101), rev, "as it was sent when it happened")
	})
}

func TestLaggingMember(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := w.link.Watch(w.Context(), "a")
		w.link.Set(Faults{Lag: 10 * time.Second})
		rev := w.put("a", "1")
		_, err := w.link.Get(w.context(time.Second), "a")
		require.ErrorIs(w, err, context.DeadlineExceeded)
		stale, err := w.link.Get(w.Context(), "a", clientv3.WithSerializable())
		require.NoError(w, err)
		require.Zero(w, stale.Count)
		require.Equal(w, rev-1, stale.Header.Revision)
		_, seen := w.events(watch)
		require.Equal(w, rev, seen)
		w.at(10 * time.Second)

		w.put("b", "1")
		w.link.Break()
		ahead := clientv3.NewWatcher(w.link.Client)
		watch = ahead.Watch(w.Context(), "a", clientv3.WithRev(rev+1))
		for range 99 {
			require.NoError(w, ahead.RequestProgress(w.Context()))
			select {
			case <-watch:
				w.Fatal("progress of a watch that is ahead of its member")
			case <-time.After(100 * time.Millisecond):
			}
		}
		time.Sleep(200 * time.Millisecond)
		require.NoError(w, ahead.RequestProgress(w.Context()))
		_, seen = w.events(watch)
		require.Equal(w, rev+1, seen)
		require.NoError(w, ahead.Close())
	})
}

func TestNoLeader(t *testing.T) {
	inBubble(t, func(w *world) {
		grant, err := w.well.Grant(w.Context(), 30)
		require.NoError(w, err)
		_, err = w.well.Put(w.Context(), "leased", "1", clientv3.WithLease(grant.ID))
		require.NoError(w, err)
		required := w.link.Watch(clientv3.WithRequireLeader(w.Context()), "leased")
		plain := w.link.Watch(w.Context(), "leased")
		time.Sleep(20 * time.Second)

		w.c.Set(Faults{NoLeader: true})
		_, err = w.link.Get(clientv3.WithRequireLeader(w.Context()), "a")
		require.ErrorIs(w, err, rpctypes.ErrNoLeader)
		resp := <-required
		require.ErrorIs(w, resp.Err(), rpctypes.ErrNoLeader)
		w.at(23 * time.Second)
		_, err = w.link.Put(w.Context(), "a", "1")
		require.ErrorIs(w, err, rpctypes.ErrTimeout)
		w.at(30 * time.Second)
		status, err := w.link.Status(w.Context(), "memetcd")
		require.NoError(w, err)
		require.Zero(w, status.Leader)
		time.Sleep(time.Minute)
		w.c.Set(Faults{})
		require.True(w, w.exists("leased"), "every lease begins again")
		w.events(plain)
		w.at(120 * time.Second)
	})
}

func TestOneMemberWithoutLeader(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := w.link.Watch(w.Context(), "a")
		w.link.Set(Faults{NoLeader: true})
		rev := w.put("a", "1")
		resp, err := w.link.Get(w.Context(), "a", clientv3.WithSerializable())
		require.NoError(w, err)
		require.Equal(w, rev-1, resp.Header.Revision)
		time.Sleep(time.Minute)
		require.Empty(w, watch)
		w.link.Set(Faults{})
		_, seen := w.events(watch)
		require.Equal(w, rev, seen)
		w.at(time.Minute)
	})
}

func TestNextMemberMayKnowLess(t *testing.T) {
	inBubble(t, func(w *world) {
		time.Sleep(time.Second)
		rev := w.put("a", "1")
		stale := func() int64 {
			resp, err := w.link.Get(w.Context(), "a", clientv3.WithSerializable())
			require.NoError(w, err)
			return resp.Header.Revision
		}
		require.Equal(w, rev, stale())
		w.link.Set(Faults{Lag: time.Minute})
		require.Equal(w, rev, stale(), "no member forgets")
		w.link.Break()
		require.Equal(w, rev-1, stale())
		time.Sleep(time.Minute)
		require.Equal(w, rev, stale())
	})
}

func TestRollbackInPlace(t *testing.T) {
	inBubble(t, func(w *world) {
		w.put("kept", "1")
		backup := w.c.Snapshot()
		watch := w.link.Watch(w.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(101))
		w.put("lost", "1")
		w.put("lost too", "1")
		keys, _ := w.events(watch)
		require.Equal(w, []string{"kept", "lost", "lost too"}, keys)

		w.c.Restore(backup, Restored{})
		require.False(w, w.exists("lost"))
		for _, key := range []string{"unseen", "unseen too", "seen"} {
			w.put(key, "1")
		}
		keys, rev := w.events(watch)
		require.Equal(w, []string{"seen"}, keys, "nothing tells the client")
		require.Equal(w, int64(104), rev)
	})
}

func TestRestores(t *testing.T) {
	inBubble(t, func(w *world) {
		rev := w.put("a", "1")
		backup := w.c.Snapshot()
		before, err := w.link.Get(w.Context(), "a")
		require.NoError(w, err)
		watch := w.link.Watch(w.Context(), "a", clientv3.WithRev(rev))
		w.events(watch)

		w.c.Restore(backup, Restored{Bump: 1000})
		resp := <-watch
		require.ErrorIs(w, resp.Err(), rpctypes.ErrCompacted)
		require.Equal(w, rev+1000, resp.CompactRevision)
		after, err := w.link.Get(w.Context(), "a")
		require.NoError(w, err)
		require.Equal(w, rev+1000, after.Header.Revision)
		require.Equal(w, rev, after.Kvs[0].ModRevision)
		require.Equal(w, before.Header.ClusterId, after.Header.ClusterId)

		w.c.Restore(backup, Restored{NewCluster: true})
		after, err = w.link.Get(w.Context(), "a")
		require.NoError(w, err)
		require.NotEqual(w, before.Header.ClusterId, after.Header.ClusterId)
		require.Equal(w, rev, after.Header.Revision)
	})
}

// A member that lags and then loses its leader gets nothing more: virtual time goes on.
func TestALaggingMemberWithoutALeader(t *testing.T) {
	inBubble(t, func(w *world) {
		w.link.Set(Faults{Lag: time.Second})
		watch := w.link.Watch(w.Context(), "a")
		time.Sleep(2 * time.Second)
		_, err := w.link.Put(w.context(100*time.Millisecond), "a", "1")
		require.ErrorIs(w, err, context.DeadlineExceeded, "the answer waits for the revision")
		w.link.Set(Faults{Lag: time.Second, NoLeader: true})
		time.Sleep(5 * time.Second)
		w.at(7100 * time.Millisecond)
		w.link.Set(Faults{})
		keys, _ := w.events(watch)
		require.Equal(w, []string{"a"}, keys)
	})
}
