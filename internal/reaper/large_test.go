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

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/message"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

// maxLarge is how many large locks a worker handles at a time.
const maxLarge = 4

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
				if len(r.Success) == 1 && h.about(r, "culprit") {
					select {
					case <-othersGone:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
			h.give(append(others[:7:7], append([]table.Due{culprit}, others[7:]...)...)...)
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
	_, client := newEtcd(t, localetcd.Options{})
	const rate = 125 << 20 // bytes a second, a tenth of the time of 100 Mbit/s
	h := newHarness(t, client, func(o *reaper.Options) { o.Store.RequestTimeout = 500 * time.Millisecond })
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
		if len(h.log.with(t, message.Removing, "big")) > 0 {
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
		"refused":         {status.Error(codes.Unavailable, "etcdserver: no leader"), lockstore.ReasonNoLeader},
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
				require.InDelta(t, 3600/5, tries, 200, "neither never again nor without a pause")
				require.Len(t, h.log.with(t, message.CannotRead, "culprit"), int(tries))
				readable.Store(true)
				<-time.After(time.Minute)
				require.Equal(t, len(all)+1, h.removed())
			})
		})
	}
}

// Where the gate has closed, etcd is the cause: the batch goes back as it is, and the
// worker pauses.
func TestS6_AReadErrorOfEtcdIsNoReasonToHalve(t *testing.T) {
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
		require.Len(t, h.log.with(t, message.CannotRead, ""), 1)
		for _, p := range h.source.postponed() {
			require.GreaterOrEqual(t, p.delay, 50*time.Millisecond)
		}
	})
}

// So many large locks are read at a time, and no more; what is not large does not wait.
func TestS6_SoManyLargeLocksAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.source.again = true
		big := names("big%d", maxLarge+3)
		h.expired(append(big, "small")...)
		for _, name := range big {
			h.crowd(name+"/x%03d", 70)
		}
		var reading, most atomic.Int32
		release := make(chan struct{})
		h.read = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
			if len(r.Success) == 1 && !h.about(r, "small") && string(r.Success[0].GetRequestRange().RangeEnd) == "" {
				most.Store(max(most.Load(), reading.Add(1)))
				<-release
				reading.Add(-1)
			}
			return nil
		}
		h.give(append(h.dues(big...), h.due("small"))...)
		h.await(func() bool { return h.removed() == 1 })
		<-time.After(10 * time.Second)
		require.EqualValues(t, maxLarge, most.Load())
		for _, p := range h.source.postponed() {
			require.Equal(t, time.Second, p.delay)
		}
		require.InDelta(t, 3*10, len(h.source.postponed()), 4)
		close(release)
		h.await(func() bool { return h.removed() == len(big)+1 })
	})
}

func TestS6_TheRateAppliesToLargeLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = maxLarge
		h := newHarness(t, nil, func(o *reaper.Options) { o.Rate, o.BatchSize = 2, n })
		all := names("big%d", n)
		h.expired(append(all, names("n%d", 2*n)...)...)
		for _, name := range all {
			h.crowd(name+"/x%03d", 70)
		}
		start := time.Now()
		h.give(append(h.dues(all...), h.dues(names("n%d", 2*n)...)...)...)
		h.await(func() bool { return h.removed() == 3*n })
		require.InDelta(t, n*time.Second, time.Since(start), float64(50*time.Millisecond))
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
				h.give(h.due("big"))
				<-reading
				start := time.Now()
				h.stop()
				require.Equal(t, c.ends, time.Since(start))
				require.Zero(t, h.sent.Load(), "it is the next replica's")
			})
		})
	}
}

// With a hold in force a large lock that was being read is put back.
func TestS3_ALargeLockIsPutBackWhereAHoldBegan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var overdue atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) { o.Signals = flagged(&overdue) })
		h.expired("big")
		h.crowd("big/x%03d", 70)
		h.read = func(context.Context, *etcdserverpb.TxnRequest) error { overdue.Store(true); return nil }
		h.remove("big")
		require.Zero(t, h.sent.Load())
		require.Len(t, h.keys(), 75)
		require.Empty(t, h.failures())
	})
}
