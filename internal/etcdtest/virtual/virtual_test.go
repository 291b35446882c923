package virtual

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// bubble is an etcd, a client and what was applied, until the test ends.
type bubble struct {
	*testing.T
	*Etcd
	link *Link
	cli  *clientv3.Client
	seen []Applied
}

// with runs a test in a bubble: all goroutines of etcd and the client must end with it.
func with(t *testing.T, test func(b *bubble)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e, err := Start(dir)
		require.NoError(t, err)
		b := &bubble{T: t, Etcd: e, link: e.Link()}
		b.cli, err = b.link.Client()
		require.NoError(t, err)
		e.OnApply(func(a Applied) { b.seen = append(b.seen, a) })
		test(b)
		require.NoError(t, b.cli.Close())
		require.NoError(t, e.Close())
	})
}

// applied returns what was, until nothing happens any more.
func (b *bubble) applied() []Applied {
	synctest.Wait()
	return b.seen
}

// put writes the key "a" and waits for at most 3 s.
func (b *bubble) put(value string) error {
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
	defer cancel()
	_, err := b.cli.Put(ctx, "a", value)
	return err
}

func (b *bubble) get() string {
	resp, err := b.cli.Get(b.Context(), "a")
	require.NoError(b, err)
	return string(resp.Kvs[0].Value)
}

func TestStalledDiskAppliesWhatWasGivenUp(t *testing.T) {
	with(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.Stall(true)
		require.Error(b, b.put("2"))
		require.Len(b, b.applied(), 1)
		b.Stall(false)
		require.Equal(b, "2", b.get())
		require.Equal(b, b.link, b.applied()[1].Link, "known by what it wrote")
	})
}

func TestHeldRequestArrivesAfterItsConnectionWasClosed(t *testing.T) {
	with(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.link.Set(memetcd.Faults{HoldRequests: true})
		require.Error(b, b.put("2"))
		<-time.After(20 * time.Second) // the keepalive closes the connection
		b.link.Set(memetcd.Faults{})
		<-time.After(time.Second)
		require.Equal(b, "2", b.get())
	})
}

func TestLateAnswers(t *testing.T) {
	with(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.link.Set(memetcd.Faults{Answer: time.Second})
		began := time.Now()
		require.NoError(b, b.put("2"))
		require.Equal(b, time.Second, time.Since(began))
		b.link.Set(memetcd.Faults{HoldAnswers: true})
		require.Error(b, b.put("3"))
		require.Len(b, b.applied(), 3)
	})
}

func TestKilledServerStartsFromItsFiles(t *testing.T) {
	with(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.Kill()
		require.Error(b, b.put("2"), "refused; it is not sent later")
		require.NoError(b, b.Restart())
		require.Equal(b, "1", b.get())
		require.NoError(b, b.put("3"))
		require.Equal(b, int64(3), b.applied()[1].Events[0].Kv.ModRevision)
	})
}

func TestRestore(t *testing.T) {
	for name, how := range map[string]memetcd.Restored{"in place": {}, "new cluster": {NewCluster: true}, "bumped": {Bump: 1000}} {
		t.Run(name, func(t *testing.T) {
			with(t, func(b *bubble) {
				require.NoError(b, b.put("1"))
				was, err := b.cli.Get(b.Context(), "a")
				require.NoError(b, err)
				backup, err := b.Save()
				require.NoError(b, err)
				require.NoError(b, b.put("2"))
				b.Kill()
				require.NoError(b, b.Restore(backup, how, func() {}))
				require.Equal(b, "1", b.get())
				is, err := b.cli.Get(b.Context(), "a")
				require.NoError(b, err)
				require.Equal(b, how.NewCluster, is.Header.ClusterId != was.Header.ClusterId)
				require.Equal(b, 2+how.Bump, is.Header.Revision)
			})
		})
	}
}

func TestLeaseEndsWithoutASender(t *testing.T) {
	with(t, func(b *bubble) {
		lease, err := b.cli.Grant(b.Context(), 5)
		require.NoError(b, err)
		_, err = b.cli.Put(b.Context(), "a", "1", clientv3.WithLease(lease.ID))
		require.NoError(b, err)
		<-time.After(10 * time.Second)
		require.Len(b, b.applied(), 2)
		require.Nil(b, b.applied()[1].Link)
	})
}
