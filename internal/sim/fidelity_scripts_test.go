package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

type script struct {
	name string
	play func(*recording)
}

type (
	cmps = []clientv3.Cmp
	ops  = []clientv3.Op
)

func scripts() []script {
	return []script{
		{"put, get and delete", func(r *recording) {
			r.puts("a=1", "b=2", "a=3")
			r.get("a")
			r.get("a", clientv3.WithRev(r.base+1))
			r.get("missing")
			r.do(clientv3.OpPut("a", "4", clientv3.WithPrevKV()))
			r.do(clientv3.OpPut("c", "", clientv3.WithPrevKV()))
			r.delete("b", clientv3.WithPrevKV())
			r.delete("b", clientv3.WithPrevKV())
			r.puts("b=again")
			r.get("b", clientv3.WithPrefix())
			r.get("", clientv3.WithFromKey())
			r.get("b", clientv3.WithRev(r.base+5))
		}},
		{"errors of requests", func(r *recording) {
			r.puts("=1")
			r.get("")
			r.delete("")
			r.puts("a=1")
			r.do(clientv3.OpPut("a", "5", clientv3.WithLease(r.lease(9))))
			r.get("a", clientv3.WithRev(r.base+100))
			r.do(clientv3.OpPut("a", strings.Repeat("x", 1600<<10)))
			r.do(clientv3.OpPut("a", strings.Repeat("x", 3<<20)))
			r.do(clientv3.OpPut("a", strings.Repeat("x", 1500<<10)))
			r.get("a", clientv3.WithKeysOnly())
		}},
		{"ranges", func(r *recording) {
			r.puts("a=1", "a/b=2", "a/b/c=3", "ab=4", "b=0", "a/b=5")
			r.delete("a/b/c")
			r.get("a/", clientv3.WithPrefix())
			r.get("a", clientv3.WithRange("b"))
			r.get("b", clientv3.WithRange("a"))
			r.get("a", clientv3.WithRange("a"))
			r.get("a", clientv3.WithPrefix(), clientv3.WithLimit(2))
			r.get("a", clientv3.WithPrefix(), clientv3.WithLimit(3))
			r.get("a", clientv3.WithPrefix(), clientv3.WithCountOnly())
			r.get("a", clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithLimit(1))
			r.get("a", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
			r.get("a", clientv3.WithPrefix(), clientv3.WithRev(r.base+3))
			r.get("b", clientv3.WithFromKey(), clientv3.WithSerializable())
			r.get("a", clientv3.WithPrefix(), clientv3.WithMaxCreateRev(r.base+2))
			r.get("a", clientv3.WithPrefix(), clientv3.WithMinModRev(r.base+4), clientv3.WithLimit(1))
			r.get("a", clientv3.WithFirstCreate()...)
			r.get("a", clientv3.WithLastRev()...)
			for _, by := range []clientv3.SortTarget{clientv3.SortByKey, clientv3.SortByCreateRevision, clientv3.SortByModRevision, clientv3.SortByValue} {
				r.get("a", clientv3.WithPrefix(), clientv3.WithSort(by, clientv3.SortDescend), clientv3.WithKeysOnly())
				r.get("a", clientv3.WithPrefix(), clientv3.WithSort(by, clientv3.SortAscend), clientv3.WithLimit(2))
			}
			r.delete("a/", clientv3.WithPrefix(), clientv3.WithPrevKV())
			r.delete("b", clientv3.WithRange("a"))
			r.delete("a", clientv3.WithFromKey())
		}},
		{"streamed ranges", func(r *recording) {
			for i := range 75 {
				r.puts(fmt.Sprintf("k%02d=%d", i, i))
			}
			r.delete("k10")
			r.list("k", clientv3.WithPrefix())
			r.list("k", clientv3.WithPrefix(), clientv3.WithRev(r.base+20))
			r.list("k", clientv3.WithPrefix(), clientv3.WithLimit(35))
			r.list("k", clientv3.WithPrefix(), clientv3.WithCountOnly())
			r.list("none", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			r.list("k01")
			r.list("")
			r.list("k", clientv3.WithPrefix(), clientv3.WithRev(r.base+500))
			r.list("k", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
			r.list("k", clientv3.WithPrefix(), clientv3.WithMinModRev(3))
			r.compact(r.base + 30)
			r.list("k", clientv3.WithPrefix(), clientv3.WithRev(r.base+29))
			r.list("k", clientv3.WithPrefix(), clientv3.WithRev(r.base+30))
		}},
		{"compares", func(r *recording) {
			r.puts("a=1", "b=2", "b=3")
			r.grant(1, 60)
			r.do(clientv3.OpPut("l", "x", clientv3.WithLease(r.lease(1))))
			then, or := ops{clientv3.OpPut("took", "then")}, ops{clientv3.OpPut("took", "else")}
			for _, key := range []string{"a", "b", "l", "missing"} {
				for _, sign := range []string{"=", "!=", ">", "<"} {
					r.txn(cmps{clientv3.Compare(clientv3.Value(key), sign, "2")}, then, or)
					r.txn(cmps{clientv3.Compare(clientv3.Version(key), sign, 1)}, then, or)
					r.txn(cmps{clientv3.Compare(clientv3.Version(key), sign, 0)}, then, or)
					r.txn(cmps{clientv3.Compare(clientv3.CreateRevision(key), sign, r.base+2)}, then, or)
					r.txn(cmps{clientv3.Compare(clientv3.ModRevision(key), sign, r.base+2)}, then, or)
					r.txn(cmps{clientv3.Compare(clientv3.LeaseValue(key), sign, int64(r.lease(1)))}, then, or)
				}
			}
			for _, sign := range []string{"=", "!=", ">", "<"} {
				for _, end := range []string{"c", "z", "A"} {
					r.txn(cmps{clientv3.Compare(clientv3.ModRevision("a"), sign, r.base+3).WithRange(end)}, then, or)
					r.txn(cmps{clientv3.Compare(clientv3.Value("a"), sign, "1").WithRange(end)}, then, or)
				}
				r.txn(cmps{clientv3.Compare(clientv3.ModRevision("none/"), sign, 1).WithPrefix()}, then, or)
				r.txn(cmps{clientv3.Compare(clientv3.Value("none/"), sign, "").WithPrefix()}, then, or)
			}
			r.txn(cmps{clientv3.Compare(clientv3.Value("a"), "=", "1"), clientv3.Compare(clientv3.Value("b"), "=", "2")}, nil, nil)
			r.txn(nil, nil, nil)
		}},
		{"nested transactions", func(r *recording) {
			r.puts("a/uuid=1", "a/at=2", "b/uuid=1", "c=0")
			gone := func(name, uuid string) clientv3.Op {
				return clientv3.OpTxn(cmps{
					clientv3.Compare(clientv3.Value(name+"/uuid"), "=", uuid),
					clientv3.Compare(clientv3.ModRevision(name+"/"), "<", r.base+100).WithPrefix(),
				}, ops{clientv3.OpDelete(name+"/", clientv3.WithPrefix(), clientv3.WithPrevKV())}, ops{clientv3.OpGet(name + "/uuid")})
			}
			r.txn(nil, ops{gone("a", "1"), gone("b", "2"), gone("none", "1")}, nil)
			// Compares see the state before, operations see what was done before them.
			r.txn(nil, ops{
				clientv3.OpGet("c"), clientv3.OpPut("c", "1"), clientv3.OpGet("c"),
				clientv3.OpTxn(cmps{clientv3.Compare(clientv3.Value("c"), "=", "0")}, ops{clientv3.OpPut("saw", "before"), clientv3.OpGet("c")}, ops{clientv3.OpPut("saw", "after")}),
				clientv3.OpDelete("b/", clientv3.WithPrefix()), clientv3.OpGet("b/", clientv3.WithPrefix()),
				clientv3.OpDelete("b/", clientv3.WithPrefix()), clientv3.OpGet("", clientv3.WithFromKey(), clientv3.WithCountOnly()),
			}, nil)
			r.txn(nil, ops{clientv3.OpDelete("none"), clientv3.OpGet("c"), clientv3.OpDelete("c"), clientv3.OpDelete("none"), clientv3.OpGet("c")}, nil)
			r.txn(nil, ops{clientv3.OpGet("c", clientv3.WithRev(r.base+4)), clientv3.OpGet("saw")}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, ops{clientv3.OpTxn(nil, ops{clientv3.OpPut("deep", "1")}, nil)}, nil)}, nil)
			r.txn(nil, ops{clientv3.OpPut("x", "1"), clientv3.OpGet("x", clientv3.WithRev(r.base+500))}, nil)
			r.txn(nil, ops{clientv3.OpPut("x", "1"), clientv3.OpTxn(nil, ops{clientv3.OpPut("y", "1", clientv3.WithLease(r.lease(9)))}, nil)}, nil)
			r.txn(nil, ops{clientv3.OpPut("x", "1"), clientv3.OpTxn(nil, nil, ops{clientv3.OpPut("y", "1", clientv3.WithLease(r.lease(9)))})}, nil)
			r.txn(nil, ops{clientv3.OpPut("x", "2", clientv3.WithPrevKV()), clientv3.OpPut("z", "2", clientv3.WithPrevKV())}, nil)
			r.get("", clientv3.WithFromKey())
		}},
		{"refused transactions", func(r *recording) {
			many := func(n int, op clientv3.Op) (all ops) {
				for range n {
					all = append(all, op)
				}
				return all
			}
			get := clientv3.OpGet("a")
			compares := func(n int) (all cmps) {
				for range n {
					all = append(all, clientv3.Compare(clientv3.Version("a"), "=", 0))
				}
				return all
			}
			r.txn(nil, many(129, get), nil)
			r.txn(nil, nil, many(129, get))
			r.txn(compares(129), nil, nil)
			r.txn(compares(128), many(128, get)[:1], nil)
			// What a level uses is missing on the one below.
			r.txn(nil, many(64, clientv3.OpTxn(compares(64), nil, nil)), nil)
			r.txn(nil, many(64, clientv3.OpTxn(compares(65), nil, nil)), nil)
			r.txn(compares(100), ops{clientv3.OpTxn(nil, many(28, get), nil)}, nil)
			r.txn(compares(100), ops{clientv3.OpTxn(nil, nil, many(29, get))}, nil)
			put := clientv3.OpPut("a/x", "1")
			r.txn(nil, ops{put, put}, nil)
			r.txn(nil, nil, ops{put, put})
			r.txn(nil, ops{put, clientv3.OpDelete("a/", clientv3.WithPrefix())}, nil)
			r.txn(nil, ops{put, clientv3.OpDelete("a/x")}, nil)
			r.txn(nil, ops{put, clientv3.OpDelete("a/y")}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, ops{put}, ops{put})}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, ops{put}, nil), clientv3.OpTxn(nil, nil, ops{put})}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, nil, ops{put}), clientv3.OpTxn(nil, ops{put}, nil)}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, nil, ops{put}), put}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, nil, ops{clientv3.OpDelete("a/", clientv3.WithPrefix())}), put}, nil)
			r.txn(nil, ops{clientv3.OpTxn(nil, ops{put}, ops{clientv3.OpDelete("a/", clientv3.WithPrefix())})}, nil)
			r.txn(nil, ops{clientv3.OpDelete("a/x"), clientv3.OpDelete("a/", clientv3.WithPrefix())}, nil)
			r.txn(nil, ops{clientv3.OpGet("")}, nil)
			r.txn(nil, nil, ops{clientv3.OpPut("", "1")})
			r.txn(cmps{clientv3.Compare(clientv3.Version(""), "=", 0)}, nil, nil)
			r.txn(nil, ops{clientv3.OpPut("big", strings.Repeat("x", 800<<10)), clientv3.OpPut("bigger", strings.Repeat("x", 900<<10))}, nil)
		}},
		{"leases", func(r *recording) {
			r.grant(1, 60)
			r.grant(1, 60)
			r.grant(2, 9) // longer than what follows takes on a busy machine
			r.grant(3, 9_000_000_001)
			r.keepAlive(1)
			r.keepAlive(2)
			r.keepAlive(3)
			on := func(key string, n int64) { r.do(clientv3.OpPut(key, "x", clientv3.WithLease(r.lease(n)))) }
			on("b", 1)
			on("a", 1)
			on("c", 1)
			on("d", 1)
			r.puts("b=detached")
			on("c", 2)
			r.delete("d")
			r.get("", clientv3.WithFromKey())
			if streams {
				r.get("a", clientv3.WithKeysOnly())
			}
			r.timeToLive(1)
			r.timeToLive(2)
			r.timeToLive(3)
			r.keepAlive(2)
			w := r.watch("watch", "", clientv3.WithFromKey(), clientv3.WithRev(r.base+1), clientv3.WithPrevKV())
			w.expect(1)
			r.revoke(1)
			w.expect(1)
			r.revoke(1)
			r.keepAlive(1)
			w.expect(1) // the other lease ends by itself
			w.close()
			r.timeToLive(2)
			r.get("", clientv3.WithFromKey())
		}},
		{"watches of the past and the present", func(r *recording) {
			r.puts("a=1", "b=1", "a=2")
			r.delete("a")
			r.txn(nil, ops{clientv3.OpPut("a", "3"), clientv3.OpPut("ab", "1"), clientv3.OpDelete("b")}, nil)
			old := r.watch("old", "a", clientv3.WithPrefix(), clientv3.WithRev(r.base+1), clientv3.WithFragment())
			one := r.watch("one", "a", clientv3.WithRev(r.base+3), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
			onlyPuts := r.watch("puts", "", clientv3.WithFromKey(), clientv3.WithRev(r.base+1), clientv3.WithFilterDelete())
			onlyDeletes := r.watch("deletes", "a", clientv3.WithPrefix(), clientv3.WithRev(r.base+2), clientv3.WithFilterPut(), clientv3.WithPrevKV())
			elsewhere := r.watch("elsewhere", "x", clientv3.WithRev(r.base+1))
			now := r.watch("now", "a", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
			old.expect(1)
			one.expect(2)
			onlyPuts.expect(1)
			onlyDeletes.expect(1)
			now.expect(1)
			elsewhere.progress()
			r.puts("a=4", "b=2")
			r.txn(nil, ops{clientv3.OpPut("a/1", "1"), clientv3.OpPut("a/2", "1"), clientv3.OpDelete("a"), clientv3.OpPut("x", "1")}, nil)
			old.expect(2)
			one.expect(2)
			onlyPuts.expect(3)
			onlyDeletes.expect(1)
			now.expect(2)
			elsewhere.expect(1)
			twice := func(ops ...clientv3.Op) {
				var nested []clientv3.Op
				for _, op := range ops {
					nested = append(nested, clientv3.OpTxn(nil, []clientv3.Op{op}, nil))
				}
				r.txn(nil, nested, nil)
			}
			twice(clientv3.OpPut("a", "5"), clientv3.OpDelete("a", clientv3.WithPrevKV()))
			r.puts("a=6")
			twice(clientv3.OpPut("a", "7"), clientv3.OpDelete("a"))
			old.expect(3)
			one.expect(3)
			onlyPuts.expect(3)
			onlyDeletes.expect(2)
			now.expect(3)
			for _, w := range []*watching{old, one, onlyPuts, onlyDeletes, elsewhere, now} {
				w.silent()
				w.close()
			}
		}},
		{"a watch of a long past", func(r *recording) {
			for i := range 1100 {
				_, err := r.cli.Put(r.ctx, fmt.Sprintf("k%d", i%2), "x")
				require.NoError(r.t, err)
			}
			one := r.watch("one", "k1", clientv3.WithRev(r.base+1))
			both := r.watch("both", "k", clientv3.WithPrefix(), clientv3.WithRev(r.base+1))
			one.expect(1)
			both.expect(2)
			one.close()
			both.close()
		}},
		{"progress", func(r *recording) {
			r.puts("a=1", "a=2")
			here := r.watch("here", "a", clientv3.WithRev(r.base+2))
			here.expect(1)
			here.progress()
			r.puts("other=1")
			here.progress()
			ahead := r.watch("ahead", "a", clientv3.WithRev(r.base+4))
			for range 3 {
				_ = ahead.watch.RequestProgress(ahead.ctx)
				ahead.silent()
			}
			r.puts("other=2")
			ahead.progress()
			r.puts("a=3")
			ahead.expect(1)
			far := r.watch("far", "a", clientv3.WithRev(r.base+8))
			r.puts("a=4", "a=5", "a=6")
			far.expect(1)
			none := r.watch("none", "a")
			none.progress()
			for _, w := range []*watching{here, ahead, far, none} {
				w.close()
			}
			_ = here.watch.RequestProgress(r.ctx)
		}},
		{"several watches on one stream", func(r *recording) {
			r.puts("a=1", "b=1")
			a := r.watch("a", "a", clientv3.WithRev(r.base+1))
			a.expect(1)
			b := &watching{recording: r, name: "b", watch: a.watch, ctx: a.ctx, cancel: a.cancel, watchC: a.watch.Watch(a.ctx, "b", clientv3.WithRev(r.base+1))}
			b.expect(1)
			a.progress()
			b.expect(1)
			c := &watching{recording: r, name: "c", watch: a.watch, ctx: a.ctx, watchC: a.watch.Watch(a.ctx, "c", clientv3.WithRev(r.base+9))}
			_ = a.watch.RequestProgress(a.ctx)
			a.silent() // one that is ahead keeps the others from it
			r.puts("a=2", "b=2")
			a.expect(1)
			b.expect(1)
			c.silent()
			a.close()
			b.next(time.Second)
		}},
		{"compaction", func(r *recording) {
			r.puts("a=1", "a=2", "b=1", "a=3")
			r.delete("b")
			synced := r.watch("synced", "a", clientv3.WithRev(r.base+1))
			synced.expect(1)
			r.compact(r.base + 4)
			r.compact(r.base + 4)
			r.compact(r.base + 3)
			r.compact(r.base + 100)
			r.get("a", clientv3.WithRev(r.base+3))
			r.get("a", clientv3.WithRev(r.base+4))
			r.get("b", clientv3.WithRev(r.base+4))
			r.get("b", clientv3.WithRev(r.base+5))
			r.txn(nil, ops{clientv3.OpGet("a", clientv3.WithRev(r.base+3))}, nil)
			r.txn(nil, ops{clientv3.OpPut("a", "9"), clientv3.OpGet("a", clientv3.WithRev(r.base+3))}, nil)
			gone := r.watch("gone", "a", clientv3.WithRev(r.base+3))
			gone.expect(2)
			oldest := r.watch("oldest", "", clientv3.WithFromKey(), clientv3.WithRev(r.base+4), clientv3.WithPrevKV())
			oldest.expect(1)
			r.compact(r.base + 5)
			r.puts("a=4", "b=2")
			r.delete("a")
			synced.expect(2)
			oldest.expect(3)
			r.compact(r.base + 8)
			r.get("", clientv3.WithFromKey())
			r.get("", clientv3.WithFromKey(), clientv3.WithRev(r.base+7))
			synced.close()
			oldest.close()
		}},
		{"watches that cannot be", func(r *recording) {
			empty := r.watch("empty", "b", clientv3.WithRange("a"))
			empty.expect(2)
			negative := r.watch("negative", "b", clientv3.WithRev(-1))
			negative.expect(2)
			closed := r.watch("closed", "b")
			closed.close()
			closed.watchC = closed.watch.Watch(r.ctx, "a")
			closed.expect(1)
		}},
		{"alarms", func(r *recording) {
			r.puts("a=1", "b=1")
			r.grant(1, 60)
			for _, alarm := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
				r.alarm(pb.AlarmRequest_ACTIVATE, alarm)
				r.alarm(pb.AlarmRequest_GET, pb.AlarmType_NONE)
				r.puts("a=2", "=3")
				r.get("a")
				r.list("a")
				del := clientv3.OpDelete("a")
				put := clientv3.OpPut("c", "1")
				r.txn(nil, ops{put}, nil)
				r.txn(nil, ops{del}, ops{put})
				if nestedPuts {
					r.txn(nil, ops{clientv3.OpTxn(nil, ops{del}, ops{put})}, nil)
				}
				r.txn(nil, ops{clientv3.OpTxn(nil, ops{del}, nil)}, nil)
				r.txn(nil, ops{clientv3.OpGet("a")}, nil)
				r.delete("b")
				r.grant(2, 60)
				r.keepAlive(1)
				r.revoke(1)
				r.compact(r.base + 2)
				w := r.watch("watch", "a", clientv3.WithRev(r.base+3))
				w.expect(1)
				w.progress()
				w.close()
				r.alarm(pb.AlarmRequest_DEACTIVATE, alarm)
				r.alarm(pb.AlarmRequest_DEACTIVATE, alarm)
				r.puts("a=3", "b=1")
			}
		}},
	}
}
