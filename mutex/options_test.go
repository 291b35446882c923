//go:build go1.25

package mutex_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
)

func TestRefused(t *testing.T) {
	t.Parallel()
	etcd := clientv3.NewCtxClient(t.Context())
	for want, opts := range map[string][]mutex.Option{
		`mutex: prefix "/mutexes": must end in a slash`:                  {mutex.Prefix("/mutexes")},
		`mutex: Status is not an option of New`:                          {mutex.Status("x")},
		`mutex: Patience: 10ms is less than 1s`:                          {mutex.Patience(10 * time.Millisecond)},
		`mutex: Patience: 9000h0m0s is more than 8784h0m0s`:              {mutex.Patience(9000 * time.Hour)},
		`mutex: Expect: 9000h0m0s is more than 8784h0m0s`:                {mutex.Expect(9000 * time.Hour), mutex.KeepAlive(mutex.Forever)},
		`mutex: Expect: 0s is not positive`:                              {mutex.Expect(0)},
		`mutex: Expect is more than Patience, which needs KeepAlive`:     {mutex.Expect(time.Hour), mutex.Patience(time.Minute)},
		`mutex: KeepAlive: -1s is not positive`:                          {mutex.KeepAlive(-time.Second)},
		`mutex: Wait: -1s is not positive`:                               {mutex.Wait(-time.Second)},
		`mutex: Identity: must have 1 to 4096 bytes`:                     {mutex.Identity("")},
		`mutex: Metadata: "uuid" is a field of the protocol`:             {mutex.Metadata("uuid", "x")},
		`mutex: Metadata: "identity" is a field of the protocol`:         {mutex.Metadata("identity", "x")},
		`mutex: Metadata: "a/b" is not the name of a field`:              {mutex.Metadata("a/b", "x")},
		`mutex: Metadata: "` + "\uFFFD" + `" is not the name of a field`: {mutex.Metadata("\xff", "x")},
		`mutex: Metadata: "ticket" has more than 65536 bytes`:            {mutex.Metadata("ticket", strings.Repeat("x", 65537))},
	} {
		_, err := mutex.New(etcd, opts...)
		require.EqualError(t, err, want)
	}
	c, err := mutex.New(etcd, mutex.Expect(time.Hour), mutex.KeepAlive(2*time.Hour))
	require.NoError(t, err)
	for want, try := range map[string]func() error{
		`mutex: lock name "a//b" has an empty segment`: func() error { _, err := c.Lock(t.Context(), "a//b"); return err },
		`mutex: Prefix is not an option of a lock`:     func() error { _, err := c.TryLock(t.Context(), "a", mutex.Prefix("/x/")); return err },
		`mutex: lock "a" is named twice`: func() error {
			_, _, err := c.TryLockAll(t.Context(), []string{"a", "b", "a"})
			return err
		},
	} {
		require.EqualError(t, try(), want)
	}
}

// TestLimits writes as much as one may, and no more.
func TestLimits(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		most := []mutex.Option{
			mutex.Identity(strings.Repeat("i", 4096)), mutex.Metadata(strings.Repeat("f", 64), strings.Repeat("x", 65536)),
			mutex.Patience(8784 * time.Hour), mutex.Expect(8784 * time.Hour),
		}
		for i := range 31 {
			most = append(most, mutex.Metadata(fmt.Sprint(i), "x"))
		}
		l := w.lock(w.client(), "a", most...)
		require.Len(t, w.fields()["a/identity"], 4096)
		require.Len(t, w.fields()["a/"+strings.Repeat("f", 64)], 65536)
		require.Equal(t, "x", w.fields()["a/30"])
		require.NoError(t, l.Unlock(t.Context()))
		w.lock(w.client(), "b", mutex.Slots(1))
		for want, more := range map[string]mutex.Option{
			`mutex: Identity: must have 1 to 4096 bytes`:                                     mutex.Identity(strings.Repeat("i", 4097)),
			`mutex: Metadata: "` + strings.Repeat("f", 64) + `…" is not the name of a field`: mutex.Metadata(strings.Repeat("f", 65), "x"),
			`mutex: Metadata: "" is not the name of a field`:                                 mutex.Metadata("", "x"),
			`mutex: Metadata: more than 32 fields`:                                           mutex.Metadata("31", "x"),
			`mutex: Patience: 8784h0m1s is more than 8784h0m0s`:                              mutex.Patience(8784*time.Hour + time.Second),
		} {
			_, err := w.client().TryLock(t.Context(), "a", append(most, more)...)
			require.EqualError(t, err, want)
		}
	})
}

// The options of one lock are not those of the next.
func TestOptionsOfALockAreItsOwn(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		c := w.client(mutex.Metadata("all", "1"))
		w.lock(c, "a", mutex.Metadata("one", "1"), mutex.Purpose("p"))
		w.lock(c, "b")
		f := w.fields()
		require.Equal(t, []string{"1", "1", "p", "1", "", ""}, []string{f["a/all"], f["a/one"], f["a/purpose"], f["b/all"], f["b/one"], f["b/purpose"]})
	})
}

func TestDefaultTimes(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		for _, tc := range []struct {
			opts        []mutex.Option
			alert, auto time.Duration
		}{
			{nil, time.Minute, 2 * time.Minute},
			{[]mutex.Option{mutex.Patience(10 * time.Second)}, 5 * time.Second, 10 * time.Second},
			{[]mutex.Option{mutex.Expect(time.Hour)}, time.Hour, 2 * time.Hour},
			{[]mutex.Option{mutex.Expect(time.Hour), mutex.KeepAlive(3 * time.Hour)}, time.Hour, 2 * time.Minute},
			{[]mutex.Option{mutex.KeepAlive(time.Minute)}, time.Minute, time.Minute},
		} {
			l := w.lock(w.client(), "a", tc.opts...)
			f := w.fields()
			at := seconds(t, f["a/locked_at"])
			require.WithinDuration(t, at.Add(tc.alert), seconds(t, f["a/alert_at"]), time.Millisecond)
			require.WithinDuration(t, at.Add(tc.auto), seconds(t, f["a/auto_unlock_at"]), time.Millisecond)
			require.NoError(t, l.Unlock(t.Context()))
		}
	})
}
