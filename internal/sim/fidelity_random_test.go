package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"
)

// TestMemoryIsAsEtcdAtRandom compares random operations on few keys, and at the end all events since
// the beginning. Unless there is an etcd to test with, a real one runs under the same virtual time, in which
// leases end and watches show what happens when it happens.
func TestMemoryIsAsEtcdAtRandom(t *testing.T) {
	if os.Getenv(endpointKey) == "" {
		rapid.Check(t, func(rt *rapid.T) {
			play := randomScript(rt, &recording{base: 1}, true)
			requireSame(rt, playVirtually(t, play), playInMemory(t, 1, play))
		})
		return
	}
	cli, err := dialer(t)()
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		_, err := cli.Delete(t.Context(), "", clientv3.WithFromKey())
		require.NoError(t, err)
		truth := newRecording(t, cli)
		play := randomScript(rt, truth, false)
		truth.play(play)
		requireSame(rt, truth, playInMemory(t, truth.base, play))
	})
}

// playVirtually plays a script on a new etcd under virtual time.
func playVirtually(t *testing.T, script func(*recording)) (r *recording) {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		etcd, err := startVirtual(dir)
		require.NoError(t, err)
		cli, err := etcd.connect(false).client()
		require.NoError(t, err)
		r = newRecording(t, cli)
		r.play(script)
		require.NoError(t, cli.Close())
		etcd.close()
	})
	return r
}

func requireSame(rt *rapid.T, truth, mem *recording) {
	if want, got := seenBy(truth), seenBy(mem); want != got {
		rt.Fatalf("etcd:\n%s\n\nmemetcd:\n%s", want, got)
	}
}

// seenBy returns what a recording has. Of a transaction with an unknown lease and a future revision, etcd 3.5
// names the lease, and later ones what comes first; the suite has each alone.
func seenBy(r *recording) string {
	const do = "do: etcd "
	return strings.NewReplacer(
		do+"NotFound: etcdserver: requested lease not found", do+"refused",
		do+"OutOfRange: etcdserver: mvcc: required revision is a future revision", do+"refused",
	).Replace(strings.Join(r.seen, "\n"))
}

// randomScript draws a script; r is one of the recordings, which are alike in what it needs.
func randomScript(rt *rapid.T, r *recording, virtually bool) func(*recording) {
	d := drawer{rt, r}
	var steps []func(*recording)
	for range rapid.IntRange(5, 20).Draw(rt, "steps") {
		if virtually && d.number(3, "time") == 0 {
			steps = append(steps, d.timed())
		} else {
			steps = append(steps, d.step())
		}
	}
	watched := d.number(3, "watched") == 0 // it takes time
	return func(r *recording) {
		r.grant(1, 600)
		if virtually {
			live := r.watch("live", "", clientv3.WithFromKey(), clientv3.WithPrevKV(), clientv3.WithRev(r.base+1))
			defer live.rest()
			defer r.alarm(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE)
			synctest.Wait()
		}
		for _, step := range steps {
			if step(r); virtually {
				synctest.Wait() // until the watch has shown it
			}
		}
		r.get("", clientv3.WithFromKey())
		if !watched {
			return
		}
		r.puts("end=1")
		w := r.watch("all", "", clientv3.WithFromKey(), clientv3.WithRev(r.base+1), clientv3.WithPrevKV())
		w.expect(1)
		w.close()
	}
}

type drawer struct {
	rt *rapid.T
	r  *recording
}

func (d drawer) number(n int, what string) int { return rapid.IntRange(0, n-1).Draw(d.rt, what) }

func (d drawer) key() string {
	return rapid.SampledFrom([]string{"a", "a/uuid", "a/b/uuid", "a/b", "b", "b/x", "c"}).Draw(d.rt, "key")
}

func (d drawer) rev() int64 { return d.r.base + 1 + int64(d.number(12, "revision")) }

func (d drawer) step() func(*recording) {
	switch rev := d.rev(); d.number(12, "kind") {
	case 0:
		return func(r *recording) { r.compact(rev) }
	case 1:
		op := d.span()
		return func(r *recording) { r.list("a", append(op, clientv3.WithRev(rev))...) }
	case 2, 3, 4, 5, 6:
		op := d.txn(2)
		return func(r *recording) { r.do(op) }
	default:
		op := d.op(0)
		return func(r *recording) { r.do(op) }
	}
}

// timed is a step of what takes time. A lease of 5 s lives after one pause, and not after two.
func (d drawer) timed() func(*recording) {
	pause := func() { <-time.After(4 * time.Second) }
	switch d.number(6, "timed") {
	case 0:
		return func(r *recording) { r.grant(2, 5) }
	case 1:
		return func(r *recording) {
			pause()
			r.keepAlive(2)
			pause()
			r.timeToLive(2)
		}
	case 2:
		return func(r *recording) { r.revoke(2) }
	case 3:
		on := pb.AlarmRequest_AlarmAction(1 + d.number(2, "alarm"))
		return func(r *recording) { r.alarm(on, pb.AlarmType_NOSPACE) }
	}
	return func(r *recording) {
		pause()
		r.timeToLive(2)
	}
}

func (d drawer) span() []clientv3.OpOption {
	switch d.number(4, "span") {
	case 0:
		return []clientv3.OpOption{clientv3.WithPrefix()}
	case 1:
		return []clientv3.OpOption{clientv3.WithRange(d.key())}
	}
	return nil
}

func (d drawer) op(depth int) clientv3.Op {
	opts := d.span()
	switch kind := d.number(10, "op"); {
	case kind < 3:
		opts = nil
		if d.number(3, "lease") == 0 {
			opts = append(opts, clientv3.WithLease(d.r.lease(int64(1+d.number(4, "lease")/3))))
		}
		if d.number(3, "previous") == 0 {
			opts = append(opts, clientv3.WithPrevKV())
		}
		return clientv3.OpPut(d.key(), fmt.Sprint(d.number(3, "value")), opts...)
	case kind < 6:
		return clientv3.OpDelete(d.key(), append(opts, clientv3.WithPrevKV())...)
	case kind < 8 && depth > 0:
		return d.txn(depth - 1)
	}
	if d.number(3, "old") == 0 {
		opts = append(opts, clientv3.WithRev(d.rev()))
	}
	if d.number(3, "limited") == 0 {
		opts = append(opts, clientv3.WithLimit(int64(1+d.number(3, "limit"))))
	}
	return clientv3.OpGet(d.key(), opts...)
}

func (d drawer) txn(depth int) clientv3.Op {
	var ifs cmps
	for range d.number(3, "compares") {
		ifs = append(ifs, d.compare())
	}
	branch := func() (all ops) {
		for range d.number(4, "operations") {
			all = append(all, d.op(depth))
		}
		return all
	}
	return clientv3.OpTxn(ifs, branch(), branch())
}

func (d drawer) compare() clientv3.Cmp {
	sign := rapid.SampledFrom([]string{"=", "!=", ">", "<"}).Draw(d.rt, "sign")
	var c clientv3.Cmp
	switch key := d.key(); d.number(5, "target") {
	case 0:
		c = clientv3.Compare(clientv3.Value(key), sign, fmt.Sprint(d.number(3, "value")))
	case 1:
		c = clientv3.Compare(clientv3.Version(key), sign, d.number(3, "version"))
	case 2:
		c = clientv3.Compare(clientv3.CreateRevision(key), sign, d.rev())
	case 3:
		c = clientv3.Compare(clientv3.ModRevision(key), sign, d.rev())
	default:
		c = clientv3.Compare(clientv3.LeaseValue(key), sign, int64(d.r.lease(1)))
	}
	switch d.number(4, "span") {
	case 0:
		return c.WithPrefix()
	case 1:
		return c.WithRange(d.key())
	}
	return c
}
