package sim

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
	*virtual
	wire *wire
	cli  *clientv3.Client
	seen []applied
}

// virtually runs a test in a bubble: all goroutines of etcd and the client must end with it.
func virtually(t *testing.T, test func(b *bubble)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e, err := startVirtual(dir)
		require.NoError(t, err)
		b := &bubble{T: t, virtual: e, wire: e.connect(false)}
		b.cli, err = b.wire.client()
		require.NoError(t, err)
		e.onApply(func(a applied) { b.seen = append(b.seen, a) })
		test(b)
		require.NoError(t, b.cli.Close())
		e.close()
	})
}

// carriedOut returns what was applied until nothing happens any more.
func (b *bubble) carriedOut() []applied {
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
	virtually(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.stall(true)
		require.Error(b, b.put("2"))
		require.Len(b, b.carriedOut(), 1)
		b.stall(false)
		require.Equal(b, "2", b.get())
		require.Equal(b, b.wire, b.carriedOut()[1].from, "known by what it wrote")
	})
}

func TestHeldRequestArrivesAfterItsConnectionWasClosed(t *testing.T) {
	virtually(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.wire.Set(memetcd.Faults{HoldRequests: true})
		require.Error(b, b.put("2"))
		<-time.After(20 * time.Second) // the keepalive closes the connection
		b.wire.Set(memetcd.Faults{})
		<-time.After(time.Second)
		require.Equal(b, "2", b.get())
	})
}

func TestLateAnswers(t *testing.T) {
	virtually(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.wire.Set(memetcd.Faults{Answer: time.Second})
		began := time.Now()
		require.NoError(b, b.put("2"))
		require.Equal(b, time.Second, time.Since(began))
		b.wire.Set(memetcd.Faults{HoldAnswers: true})
		require.Error(b, b.put("3"))
		require.Len(b, b.carriedOut(), 3)
	})
}

func TestKilledServerStartsFromItsFiles(t *testing.T) {
	virtually(t, func(b *bubble) {
		require.NoError(b, b.put("1"))
		b.kill()
		require.Error(b, b.put("2"), "refused; it is not sent later")
		b.restart()
		require.Equal(b, "1", b.get())
		require.NoError(b, b.put("3"))
		require.Equal(b, int64(3), b.carriedOut()[1].events[0].Kv.ModRevision)
	})
}

func TestRestore(t *testing.T) {
	for name, how := range map[string]memetcd.Restored{"in place": {}, "new cluster": {NewCluster: true}, "bumped": {Bump: 1000}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(b *bubble) {
				require.NoError(b, b.put("1"))
				was, err := b.cli.Get(b.Context(), "a")
				require.NoError(b, err)
				backup, err := b.snapshot()
				require.NoError(b, err)
				require.NoError(b, b.put("2"))
				b.kill()
				require.NoError(b, b.replace(backup, how, func() {}))
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
	virtually(t, func(b *bubble) {
		lease, err := b.cli.Grant(b.Context(), 5)
		require.NoError(b, err)
		_, err = b.cli.Put(b.Context(), "a", "1", clientv3.WithLease(lease.ID))
		require.NoError(b, err)
		<-time.After(10 * time.Second)
		require.Len(b, b.carriedOut(), 2)
		require.Nil(b, b.carriedOut()[1].from)
	})
}
