package etcd

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// received is a connection on which some bytes arrive at each interval.
type received struct {
	net.Conn
	every time.Duration
	bytes int
	read  time.Time // all that arrived before
}

func (r *received) Read(b []byte) (int, error) {
	<-time.After(time.Until(r.read.Add(r.every)))
	intervals := max(1, min(int(time.Since(r.read)/r.every), len(b)/r.bytes))
	r.read = r.read.Add(time.Duration(intervals) * r.every)
	return intervals * r.bytes, nil
}

// reads returns how long the next n reads of a connection were after the reads before them.
func reads(c *connection, n int) (gaps []time.Duration) {
	for range n {
		before := time.Now()
		_, _ = c.Read(make([]byte, readBuffer))
		gaps = append(gaps, time.Since(before))
	}
	return gaps
}

func paced(every time.Duration, bytes int) *connection {
	return &connection{Conn: &received{every: every, bytes: bytes, read: time.Now()}, traffic: newTraffic(Options{})}
}

// Many responses of a watch are read in batches, from the third on. What comes alone is not delayed, nor
// is anything while a request is in flight, nor what a read has left.
func TestReadsComeInBatches(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		every time.Duration
		bytes int
		want  []time.Duration
	}{
		"many":                     {ms, 1, []time.Duration{ms, ms, batch, batch, batch}},
		"one in a batch":           {batch + ms, 1, slices.Repeat([]time.Duration{batch + ms}, 5)},
		"alone":                    {time.Second, 1, slices.Repeat([]time.Duration{time.Second}, 5)},
		"more than fits in a read": {ms, readBuffer, slices.Repeat([]time.Duration{ms}, 5)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.Equal(t, c.want, reads(paced(c.every, c.bytes), 5))
			})
		})
	}
}

// The answer of a request, and the events that follow it, are not delayed, even if it begins while a read waits.
func TestReadsDoNotWaitDuringARequest(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		c := paced(ms, 1)
		reads(c, 3)
		time.AfterFunc(5*ms+ms/2, func() {
			request := c.begin()
			time.AfterFunc(10*ms, func() { c.ended(request, false) })
		})
		require.Equal(t, 5*ms+ms/2, reads(c, 1)[0], "the request began then")
		var eager int
		for start := time.Now(); reads(c, 1)[0] <= ms; eager++ {
			require.Less(t, time.Since(start), time.Second)
		}
		require.InDelta(t, (10*ms+aftermath)/ms, eager, 2, "until shortly after it ended")
		require.Equal(t, []time.Duration{batch, batch}, reads(c, 2))
	})
}

// While a read waits, the kernel does not report what arrives, and then it does as before.
func TestWhatArrivesDuringAWaitWakesNothing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	wakesAt := func() (bytes int) {
		socket, err := conn.(syscall.Conn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, socket.Control(func(fd uintptr) {
			bytes, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT)
		}))
		require.NoError(t, err)
		return bytes
	}
	c, waited := &connection{Conn: conn, traffic: newTraffic(Options{})}, make(chan struct{})
	go func() {
		defer close(waited)
		c.wait(time.Hour)
	}()
	etcdtest.Eventually(t, func() bool { return wakesAt() == readBuffer }, "waits")
	request := c.begin()
	<-waited
	require.Equal(t, 1, wakesAt())
	c.wait(time.Hour) // returns at once
	c.ended(request, false)
	c.wait(time.Hour) // as well: events may follow
}

// A listing is a request until all of it was read or its context is done; a watch is none.
func TestStreamsThatEndAreRequests(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Put(clientv3.OpPut("/a", "1"))
	traffic := newTraffic(Options{HangAfter: time.Minute})
	requests := func() int {
		traffic.mu.Lock()
		defer traffic.mu.Unlock()
		return len(traffic.pending)
	}
	o := options(e.Endpoints()[0])
	o.HangAfter, o.DialOptions = 0, []grpc.DialOption{grpc.WithChainUnaryInterceptor(traffic.intercept), grpc.WithChainStreamInterceptor(traffic.stream)}
	c := mustNew(t, o)
	require.True(t, (<-c.Watch(t.Context(), "/a", clientv3.WithCreatedNotify())).Created)
	require.Zero(t, requests())
	kv, list := pb.NewKVClient(c.ActiveConnection()), &pb.RangeRequest{Key: []byte("/a")}
	stream, err := kv.RangeStream(t.Context(), list)
	require.NoError(t, err)
	require.Equal(t, 1, requests())
	for ; err == nil; _, err = stream.Recv() {
	}
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, requests())
	ctx, cancel := context.WithCancel(t.Context())
	_, err = kv.RangeStream(ctx, list)
	require.NoError(t, err)
	require.Equal(t, 1, requests())
	cancel()
	etcdtest.Eventually(t, func() bool { return requests() == 0 }, "ended")
}

// A watch shows each of many writes in order, and then one that comes alone, with and without TLS.
func TestAPacedWatchShowsEachWrite(t *testing.T) {
	t.Parallel()
	s, plain := newSecure(t), etcdtest.Start(t, localetcd.Options{})
	for name, o := range map[string]Options{
		"plain": options(plain.Endpoints()[0]),
		"TLS":   s.options(s.cluster.Addr(0), s.ca.issue(t, s.dir, "paced")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const writes = 500
			writer := mustNew(t, o)
			watch := mustNew(t, o).Watch(t.Context(), "paced", clientv3.WithCreatedNotify())
			require.True(t, (<-watch).Created)
			shown := 0
			shows := func(want int) {
				for shown < want {
					r := <-watch
					require.NoError(t, r.Err())
					for _, ev := range r.Events {
						require.Equal(t, strconv.Itoa(shown), string(ev.Kv.Value))
						shown++
					}
				}
			}
			for i := range writes {
				_, err := writer.Put(t.Context(), "paced", strconv.Itoa(i))
				require.NoError(t, err)
			}
			shows(writes)
			<-time.After(2 * batch) // a read waits for a batch no more
			_, err := writer.Put(t.Context(), "paced", strconv.Itoa(writes))
			require.NoError(t, err)
			shows(writes + 1)
		})
	}
}
