package etcd

import (
	"context"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

const (
	batch      = 100 * time.Millisecond // between two reads, while watches show much
	aftermath  = 20 * time.Millisecond  // after a request, in which the events of what it wrote arrive
	readBuffer = 32 << 10               // that of gRPC: a read that fills it may have left something
	// window is what a member may send before gRPC has taken it. It is constant, since gRPC estimates a better one by a
	// ping for almost each response of a watch.
	window = 4 << 20
)

// stream counts a stream that ends by itself as a request, such as a listing: no watch, and no keepalive.
func (t *traffic) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if !desc.ClientStreams {
		r := t.begin()
		opts = append(opts, grpc.OnFinish(func(error) { t.ended(r, false) }))
	}
	return open(ctx, desc, cc, method, opts...)
}

// Read makes what watches show come in batches. etcd sends a response for each transaction, and waking up for it costs
// more CPU time than all else. What comes alone is read at once: a read waits if the last two were close together.
func (c *connection) Read(b []byte) (int, error) {
	if c.drained && c.gap < batch*3/2 {
		c.wait(batch - time.Since(c.heard))
	}
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); n > 0 {
		c.drained, c.gap, c.heard = n < len(b), now.Sub(c.heard), now
	}
	return n, err
}

// wait blocks for d, unless a request is in flight, or ended just now: the events of what it wrote follow it. What arrives
// meanwhile does not wake the process.
func (c *connection) wait(d time.Duration) {
	t := c.traffic
	t.mu.Lock()
	begun, busy := t.begun, len(t.pending) > 0 || time.Since(t.over) < aftermath
	t.mu.Unlock()
	if busy || d <= 0 {
		return
	}
	c.wakeAt(readBuffer)
	defer c.wakeAt(1)
	select {
	case <-begun:
	case <-time.After(d):
	}
}

// wakeAt sets how many bytes must have arrived before the kernel reports any. Some proxies have no socket.
func (c *connection) wakeAt(bytes int) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		if socket, err := conn.SyscallConn(); err == nil {
			_ = socket.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes) })
		}
	}
}
