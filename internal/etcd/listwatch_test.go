package etcd_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

var errListing = errors.New("refused")

// looped runs a loop whose listings call list. It returns when each of them began, and why each
// session failed.
func looped(t *testing.T, link *memetcd.Link, lasts time.Duration, list func(n int) error) (began []time.Duration, failures []error) {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	require.NoError(t, etcd.Loop{
		List: func(context.Context) (etcd.Watch, error) {
			began = append(began, time.Since(start))
			return etcd.Watch{
				Client: link.Client, Key: "/a/", Options: []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(1)}, Silence: freshness,
				Opened: func(int64) error { return nil },
				Each:   func(context.Context, clientv3.WatchResponse) error { return nil },
			}, list(len(began))
		},
		Failed: func(_ context.Context, err error) error {
			failures = append(failures, err)
			return nil
		},
	}.Run(ctx))
	return began, failures
}

func linked(t *testing.T, test func(*testing.T, *memetcd.Link)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		link, err := cluster.Connect()
		require.NoError(t, err)
		test(t, link)
	})
}

func TestLoopBacksOffWithJitter(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, link *memetcd.Link) {
		began, failures := looped(t, link, time.Minute, func(int) error { return errListing })
		require.ErrorIs(t, failures[0], errListing)
		longest, jitter := 100*time.Millisecond, false
		for i, at := range began[1:] {
			pause := at - began[i]
			require.GreaterOrEqual(t, pause, longest/2, i)
			require.Less(t, pause, longest, i)
			jitter = jitter || pause != longest/2
			longest = min(2*longest, 5*time.Second)
		}
		require.True(t, jitter)
		require.Greater(t, len(began), 15)
	})
}

// Only a watch that lasted longer than its silence was healthy.
func TestLoopBackoffStartsAgainAfterAHealthyWatch(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, link *memetcd.Link) {
		const silent, healthy = 9, 11
		began, failures := looped(t, link, 3*time.Minute, func(n int) error {
			switch n - 1 {
			case silent:
				link.Set(memetcd.Unreachable())
				return nil
			case healthy:
				link.Set(memetcd.Faults{})
				time.AfterFunc(freshness+time.Second, func() { link.Set(memetcd.Unreachable()) })
				return nil
			}
			return errListing
		})
		require.ErrorIs(t, failures[silent], etcd.ErrSilent)
		require.GreaterOrEqual(t, began[silent+1]-began[silent], freshness+5*time.Second/2)
		require.GreaterOrEqual(t, began[healthy]-began[healthy-1], 5*time.Second/2)
		require.ErrorIs(t, failures[healthy], etcd.ErrSilent)
		require.Equal(t, 2*freshness, (began[healthy+1] - began[healthy]).Truncate(100*time.Millisecond), "from its last progress notice")
		require.Less(t, began[healthy+2]-began[healthy+1], 200*time.Millisecond, "the second failure since")
	})
}

// etcd is healthy: what was compacted is listed at once, however often that happens.
func TestLoopListsAtOnceAfterACompaction(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, link *memetcd.Link) {
		for range 5 {
			_, err := link.Put(t.Context(), "/a/k", "v")
			require.NoError(t, err)
		}
		_, err := link.Compact(t.Context(), 3)
		require.NoError(t, err)
		began, failures := looped(t, link, freshness, func(n int) error {
			if n < 3 {
				return rpctypes.ErrCompacted
			}
			return nil
		})
		require.Equal(t, began[0], began[1])
		require.Equal(t, began[0], began[2])
		require.Equal(t, etcd.Compacted, etcd.Classify(failures[2]), "%v", failures[2])
		require.Equal(t, 100*time.Millisecond, began[3]-began[2], "until etcd looks at a new watch, and no longer")
	})
}

// The error of Failed ends the loop.
func TestLoopEndsWithTheErrorOfFailed(t *testing.T) {
	t.Parallel()
	loop := etcd.Loop{
		List:   func(context.Context) (etcd.Watch, error) { return etcd.Watch{}, errListing },
		Failed: func(_ context.Context, err error) error { return err },
	}
	require.ErrorIs(t, loop.Run(t.Context()), errListing)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, loop.Run(ctx))
}

// The errors of the functions of a watch end it, and are its error.
func TestWatchFailsWithItsFunctions(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*etcd.Watch){
		"each": func(w *etcd.Watch) {
			w.Each = func(context.Context, clientv3.WatchResponse) error { return errListing }
		},
		"opened": func(w *etcd.Watch) { w.Opened = func(int64) error { return errListing } },
		"during": func(w *etcd.Watch) {
			w.During = func(context.Context, func(context.Context) error) error { return errListing }
		},
	} {
		t.Run(name, func(t *testing.T) {
			linked(t, func(t *testing.T, link *memetcd.Link) {
				w := etcd.Watch{
					Client: link.Client, Key: "/a/", Silence: freshness, Opened: func(int64) error { return nil },
					Each: func(context.Context, clientv3.WatchResponse) error { return nil },
				}
				edit(&w)
				require.ErrorIs(t, w.Run(t.Context()), errListing)
			})
		})
	}
}
