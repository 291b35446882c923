package reaper_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// So many locks are read alone at a time, so many that could not be read in time, and so many
// wait in the queue of each.
const aloneSlots, slowSlots, maxAlone = 8, 4, 1024

// about reports whether a transaction reads keys of a lock.
func (h *harness) about(r *etcdserverpb.TxnRequest, name string) bool {
	for _, op := range r.Success {
		if bytes.HasPrefix(op.GetRequestRange().GetKey(), []byte(h.direct.Layout.Prefix()+name+"/")) {
			return true
		}
	}
	return false
}

// large are the ways in which a lock can take several requests to read.
func large() map[string]func(h *harness, name string) {
	return map[string]func(h *harness, name string){
		"a big value":      func(h *harness, name string) { h.set(name, "backtrace", strings.Repeat("x", 64<<10)) },
		"many keys":        func(h *harness, name string) { h.crowd(name+"/%03d", 70) },
		"many nested keys": func(h *harness, name string) { h.crowd(name+"/x%03d/uuid", 70) },
		"a nested name":    func(h *harness, name string) { h.set(name+"/nested", "uuid", "u", "hostname", "h") },
	}
}

// However long it takes to read one lock, another service's dead lock in the same batch,
// and those in the next, are removed meanwhile.
func TestS6_TheTimeToReadALockDelaysNoOther(t *testing.T) {
	for name, enlarge := range large() {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			all := names("n%03d", 30)
			h.expired(append(all, "culprit")...)
			enlarge(h, "culprit")
			culprit, others := h.due("culprit"), h.dues(all...)
			othersGone := make(chan struct{})
			h.read = func(ctx context.Context, r *etcdserverpb.TxnRequest) error {
				require.False(t, (name == "a big value" || name == "many keys") && h.about(r, "culprit") && h.about(r, "n000"), "one that is known to be large is read alone")
				if len(r.Success) == 1 && h.about(r, "culprit") {
					select {
					case <-othersGone:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
			h.give(append(others[:7:7], append([]table.View{culprit}, others[7:]...)...)...)
			h.await(func() bool { return h.removed() == len(all) })
			close(othersGone)
			h.await(func() bool { return h.removed() == len(all)+1 })
			require.Empty(t, h.get("culprit/uuid"))
			require.Empty(t, h.source.postponed())
			require.Empty(t, h.failures())
		})
	}
}

// One lock with 64 values of 1.4 MiB, on a link that takes longer for all of them than a
// request may.
func TestS6_ABigLockOnASlowLinkDelaysNoOther(t *testing.T) {
	t.Parallel()
	_, client := newEtcd(t, localetcd.Options{})
	const rate = 25 << 20 // bytes a second, half of the time of 100 Mbit/s
	h := newHarness(t, client, func(o *reaper.Options) { o.Store.RequestTimeout = 3 * time.Second })
	h.source.again = true
	h.expired("big", "dead")
	for i := range 64 {
		h.set("big", fmt.Sprintf("x%02d", i), strings.Repeat("x", 14<<20/10))
	}
	big, dead := h.due("big"), h.due("dead")
	var bigRead, deadGone atomic.Int64
	h.answer = func(ctx context.Context, r *etcdserverpb.TxnResponse) error {
		select {
		case <-time.After(time.Duration(proto.Size(r)) * time.Second / rate):
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	h.before = func(context.Context) {
		if len(h.log.with(t, api.LogRemoving, "big")) > 0 {
			bigRead.CompareAndSwap(0, time.Now().UnixNano())
		} else {
			deadGone.CompareAndSwap(0, time.Now().UnixNano())
		}
	}
	h.give(big, dead)
	h.await(func() bool { return h.removed() == 2 })
	require.NotZero(t, deadGone.Load())
	require.Greater(t, bigRead.Load(), deadGone.Load())
	require.Empty(t, h.keys())
	require.Empty(t, h.failures())
}

// A lock that cannot be read backs off alone; those taken with it are removed at once.
func TestS6_ALockThatCannotBeReadBacksOffAlone(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		reason lockstore.Reason
	}{
		"too slow":        {context.DeadlineExceeded, lockstore.ReasonUnreadable},
		"connection lost": {status.Error(codes.Unavailable, "EOF"), lockstore.ReasonUnreadable},
		"too big":         {status.Error(codes.ResourceExhausted, "message larger than max"), lockstore.ReasonTooLarge},
		"refused":         {status.Error(codes.Unavailable, "etcdserver: no leader"), etcd.NoLeader},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil)
				h.source.again = true
				all := names("n%03d", 15)
				h.expired(append(all, "culprit")...)
				var readable atomic.Bool
				h.read = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
					if h.about(r, "culprit") && !readable.Load() {
						return c.err
					}
					return nil
				}
				start := time.Now()
				h.give(append(h.dues(all...), h.due("culprit"))...)
				h.await(func() bool { return h.removed() == len(all) })
				require.Less(t, time.Since(start), 50*time.Millisecond)
				for _, p := range h.source.postponed() {
					require.Equal(t, "culprit", p.name)
					require.GreaterOrEqual(t, p.delay, 50*time.Millisecond)
				}
				<-time.After(time.Hour)
				tries := h.failures()[c.reason]
				require.EqualValues(t, len(h.source.postponed()), tries)
				require.Len(t, h.failures(), 1)
				require.InDelta(t, 3600/60, tries, 30, "neither never again nor without a pause")
				require.Len(t, h.log.with(t, api.LogCannotRead, "culprit"), int(tries))
				readable.Store(true)
				<-time.After(90 * time.Second)
				require.Equal(t, len(all)+1, h.removed())
			})
		})
	}
}

// Where the gate has closed, etcd is the cause: the batch goes back as it is, and the
// worker pauses.
func TestS6_AReadErrorOfEtcdIsNoReasonToReadAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var overdue atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) { o.Signals = flagged(&overdue) })
		h.expired(names("n%d", 16)...)
		h.read = func(context.Context, *etcdserverpb.TxnRequest) error {
			overdue.Store(true)
			return context.DeadlineExceeded
		}
		h.remove(names("n%d", 16)...)
		require.EqualValues(t, 1, h.reads.Load())
		require.Len(t, h.source.postponed(), 16)
		require.Len(t, h.log.with(t, api.LogCannotRead, ""), 1)
		for _, p := range h.source.postponed() {
			require.Zero(t, p.delay)
		}
	})
}

// So many locks are read alone at a time, and no more. The others wait in a queue, from which they
// are taken at once, and what is read with others does not wait.
func TestS6_LocksReadAloneWaitInAQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		big := names("big%d", 3*aloneSlots)
		h.expired(append(big, "small")...)
		for _, name := range big {
			h.crowd(name+"/x%03d", 70)
		}
		const takes = 100 * time.Millisecond
		var reading, most atomic.Int32
		h.read = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
			if !h.about(r, "small") && string(r.Success[0].GetRequestRange().RangeEnd) == "" {
				now := reading.Add(1)
				for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
				}
				<-time.After(takes)
				reading.Add(-1)
			}
			return nil
		}
		start := time.Now()
		h.give(append(h.dues(big...), h.due("small"))...)
		h.await(func() bool { return h.removed() == 1 })
		require.Less(t, time.Since(start), takes)
		h.await(func() bool { return h.removed() == len(big)+1 })
		require.InDelta(t, 3*takes, time.Since(start), float64(takes/2))
		require.EqualValues(t, aloneSlots, most.Load())
		require.Empty(t, h.source.postponed())
	})
}

// A large lock says nothing about how long others take to read: where etcd is slow, their limit stays.
func TestS6_ALargeLockShortensNoLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) { o.Store.RequestTimeout = 5 * time.Second })
		h.expired("a", "b", "c", "big")
		h.crowd("big/x%03d", 70)
		h.read = func(ctx context.Context, _ *etcdserverpb.TxnRequest) error {
			select {
			case <-time.After(800 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		h.remove("a") // whose first read takes too long
		h.remove("b")
		h.remove("big")
		before := h.reads.Load()
		h.remove("c")
		require.EqualValues(t, 1, h.reads.Load()-before)
		require.Equal(t, 4, h.removed())
	})
}

// The queues are bounded. What finds no place is put back, and what is read with others goes.
func TestS6_SoManyLocksWaitToBeReadAlone(t *testing.T) {
	for name, c := range map[string]struct {
		slots int
		slow  bool
	}{"large": {aloneSlots, false}, "slow": {slowSlots, true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil)
				h.expired("small", "big")
				h.crowd("big/x%03d", 70)
				release := make(chan struct{})
				h.read = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
					if !h.about(r, "small") {
						<-release
					}
					return nil
				}
				one := h.due("big")
				var all []table.View
				for _, one.Name = range names("big%d", c.slots+maxAlone+5) {
					one.Slow = c.slow
					all = append(all, one)
				}
				h.give(all[:c.slots]...)
				<-time.After(time.Second)
				h.give(append(all[c.slots:], h.due("small"))...)
				h.await(func() bool { return h.removed() == 1 })
				require.Len(t, h.source.postponed(), 5)
				for _, p := range h.source.postponed() {
					require.Equal(t, time.Second, p.delay)
				}
				close(release)
				h.await(func() bool { return len(h.source.postponed()) == len(all) })
				require.EqualValues(t, len(all)-5, h.Stats().Conflicts, "there are no such locks")
				h.give(all[5:]...)
				h.await(func() bool { return len(h.source.postponed()) == 2*len(all)-5 })
				require.EqualValues(t, 2*(len(all)-5), h.Stats().Conflicts, "their places are free again")
			})
		})
	}
}

// A lock that could not be read in time, or alone, is neither read with others again nor by the
// slots of those that can.
func TestS6_WhatCannotBeReadInTimeKeepsApart(t *testing.T) {
	for name, enlarge := range map[string]func(*harness, string){"small": func(*harness, string) {}, "large": large()["many keys"]} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) { o.Store.RequestTimeout = 5 * time.Second })
				h.source.again = true
				culprits := names("culprit%02d", 3*aloneSlots)
				h.expired(culprits...)
				for _, name := range culprits {
					enlarge(h, name)
				}
				h.read = func(ctx context.Context, r *etcdserverpb.TxnRequest) error {
					if bytes.Contains(r.Success[0].GetRequestRange().GetKey(), []byte("culprit")) {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}
				h.give(h.dues(culprits...)...)
				<-time.After(10 * time.Second) // until each was tried
				for i := range 30 {
					<-time.After(3 * time.Second)
					small, large := fmt.Sprint("small", i), fmt.Sprint("large", i)
					h.expired(small, large)
					h.crowd(large+"/x%03d", 70)
					start := time.Now()
					h.give(h.dues(small, large)...)
					h.await(func() bool { return h.removed() == 2*(i+1) })
					require.Less(t, time.Since(start), 50*time.Millisecond, "%s after %d", name, i)
				}
				require.NotEmpty(t, h.failures())
			})
		})
	}
}

func TestS6_TheRateAppliesToLargeLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n, rate = 4, 2
		h := newHarness(t, nil, func(o *reaper.Options) { o.Rules.RateLimit, o.Rules.BatchSize = rate, n })
		all := names("big%d", n)
		h.expired(append(all, names("n%d", 2*n)...)...)
		for _, name := range all {
			h.crowd(name+"/x%03d", 70)
		}
		start := time.Now()
		h.give(append(h.dues(all...), h.dues(names("n%d", 2*n)...)...)...)
		h.await(func() bool { return h.removed() == 3*n })
		require.InDelta(t, (3*n-rate)*time.Second/rate, time.Since(start), float64(50*time.Millisecond))
	})
}

// A large lock whose removal fails is not read again without a pause.
func TestS6_ALargeLockWhoseRemovalFailsBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.source.again = true
		h.expired("big")
		h.crowd("big/x%03d", 70)
		h.timeout = -1
		h.give(h.due("big"))
		<-time.After(time.Hour)
		tries := h.failures()[lockstore.ReasonAmbiguous]
		require.InDelta(t, 3600/5, tries, 200)
		require.Len(t, h.keys(), 75)
		require.Len(t, h.source.slowOnes(), int(tries), "it keeps no slot from those that did not fail")
	})
}

// Run waits for the large locks in flight, and no longer than for others.
func TestRunEndsWhileALargeLockIsRead(t *testing.T) {
	for name, c := range map[string]struct {
		answer, ends time.Duration
	}{"answered": {time.Second, time.Second}, "hangs": {time.Hour, 2 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) { o.Store.RequestTimeout = 24 * time.Hour })
				h.expired("big")
				h.crowd("big/x%03d", 70)
				reading := make(chan struct{})
				var first atomic.Bool
				h.read = func(ctx context.Context, _ *etcdserverpb.TxnRequest) error {
					if first.CompareAndSwap(false, true) {
						close(reading)
						<-h.ending.Done()
						sleep(ctx, c.answer)
					}
					return ctx.Err()
				}
				due := h.due("big")
				due.Slow = true
				h.give(due)
				<-reading
				start := time.Now()
				h.stop()
				require.Equal(t, c.ends, time.Since(start))
				require.Zero(t, h.sent.Load(), "it is the next replica's")
			})
		})
	}
}

// A hold that begins while locks are read alone, or wait for that, puts all of them back, and
// they do not count as slow: etcd may be the cause.
func TestS3_LocksReadAloneArePutBackWhereAHoldBegan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var overdue atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) { o.Signals = flagged(&overdue) })
		big := names("big%02d", 2*aloneSlots)
		h.expired(big...)
		for _, name := range big {
			h.crowd(name+"/x%03d", 70)
		}
		h.read = func(ctx context.Context, _ *etcdserverpb.TxnRequest) error {
			<-ctx.Done()
			overdue.Store(true)
			return ctx.Err()
		}
		h.remove(big...)
		require.EqualValues(t, aloneSlots, h.reads.Load())
		require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonUnreadable: aloneSlots}, h.failures())
		for _, p := range h.source.postponed() {
			require.Zero(t, p.delay)
		}
		require.Empty(t, h.source.slowOnes())
	})
}

// Where a hold began while locks were read nothing is announced, nor reported in a dry run.
func TestS3_ALockThatWasReadIsPutBackWhereAHoldBegan(t *testing.T) {
	for _, mode := range []verdict.Mode{verdict.Enforce, verdict.DryRun} {
		for name, keys := range map[string]int{"small": 0, "large": 70} {
			t.Run(mode+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var overdue atomic.Bool
					h := newHarness(t, nil, func(o *reaper.Options) {
						o.Signals, o.Rules.Mode = flagged(&overdue), mode
					})
					h.expired("a")
					h.crowd("a/x%03d", keys)
					h.read = func(context.Context, *etcdserverpb.TxnRequest) error { overdue.Store(true); return nil }
					h.remove("a")
					require.Zero(t, h.sent.Load())
					require.Zero(t, h.Stats().Would)
					require.Empty(t, h.log.with(t, api.LogRemoving, ""))
					require.Empty(t, h.log.with(t, api.LogWouldRemove, ""))
					require.Len(t, h.keys(), 5+keys)
					require.Empty(t, h.failures())
					require.Zero(t, h.putBack())
				})
			})
		}
	}
}
