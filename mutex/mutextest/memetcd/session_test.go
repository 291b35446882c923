//go:build go1.25

package memetcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func TestElection(t *testing.T) {
	inBubble(t, func(w *world) {
		var sessions []*concurrency.Session
		var elections []*concurrency.Election
		won := make(chan int, 2)
		for i, l := range []*Link{w.link, w.well} {
			s, err := concurrency.NewSession(l.Client, concurrency.WithTTL(10))
			require.NoError(w, err)
			sessions, elections = append(sessions, s), append(elections, concurrency.NewElection(s, "elect"))
			go func() {
				if elections[i].Campaign(w.Context(), "me") == nil {
					won <- i
				}
			}()
			synctest.Wait()
		}
		require.Equal(w, 0, <-won)
		time.Sleep(time.Hour)
		require.Empty(w, won, "both leases are kept alive")

		lost := time.Now()
		w.link.Set(Unreachable())
		require.Equal(w, 1, <-won)
		require.InDelta(w, 10, time.Since(lost).Seconds(), 4)
		<-sessions[0].Done()
		w.link.Set(Faults{})
		require.NoError(w, elections[1].Resign(w.Context()))
		require.NoError(w, sessions[1].Close())
	})
}

func TestLeasesEndInOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := w.link.Watch(w.Context(), "", clientv3.WithPrefix(), clientv3.WithFilterPut())
		for _, key := range []string{"b", "a", "c"} {
			grant, err := w.well.Grant(w.Context(), 5)
			require.NoError(w, err)
			_, err = w.well.Put(w.Context(), key, "", clientv3.WithLease(grant.ID))
			require.NoError(w, err)
		}
		for i, key := range []string{"b", "a", "c"} {
			keys, rev := w.events(watch)
			require.Equal(w, []string{key}, keys)
			require.Equal(w, int64(104+i), rev)
		}
		w.at(5 * time.Second)
	})
}

// BenchmarkPut is what a request costs, the client library included.
func BenchmarkPut(b *testing.B) {
	c := New(Options{})
	link, err := c.Connect()
	require.NoError(b, err)
	for b.Loop() {
		_, err := link.Put(b.Context(), "a", "1")
		require.NoError(b, err)
	}
	require.NoError(b, c.Close())
}
