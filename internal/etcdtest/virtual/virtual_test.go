package virtual

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestX(t *testing.T) {
	dir := t.TempDir()
	r0 := time.Now()
	synctest.Test(t, func(t *testing.T) {
		t0 := time.Now()
		e, err := Start(dir)
		require.NoError(t, err)
		t.Log("ready", time.Since(t0))
		l := e.Link()
		c, err := l.Client()
		require.NoError(t, err)
		var seen []Applied
		e.OnApply(func(a Applied) { seen = append(seen, a) })
		_, err = c.Put(t.Context(), "a", "1")
		require.NoError(t, err)
		t.Log("put", time.Since(t0))
		e.Stall(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err = c.Put(ctx, "a", "2")
		cancel()
		require.Error(t, err)
		e.Stall(false)
		r, err := c.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "2", string(r.Kvs[0].Value))
		require.Equal(t, l, seen[1].Link)
		backup, err := e.Save()
		require.NoError(t, err)
		e.Kill()
		time.Sleep(time.Second)
		t1 := time.Now()
		require.NoError(t, e.Restart())
		_, err = c.Put(t.Context(), "a", "3")
		require.NoError(t, err)
		t.Log("put after", time.Since(t1))
		r1 := time.Now()
		e.Kill()
		require.NoError(t, e.Restore(backup, memetcd.Restored{NewCluster: true}, func() {}))
		t1 = time.Now()
		_ = r1
		r, err = c.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "2", string(r.Kvs[0].Value))
		t.Log("get after", time.Since(t1))
		w := c.Watch(t.Context(), "a", clientv3.WithRev(1))
		<-w
		l.Set(memetcd.Faults{HoldAnswers: true})
		t1 = time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
		_, err = c.Put(ctx, "a", "4")
		t.Log(err, time.Since(t1))
		cancel()
		l.Set(memetcd.Faults{})
		time.Sleep(10 * time.Minute)
		c.Close()
		require.NoError(t, e.Close())
	})
	t.Log("real", time.Since(r0))
}
