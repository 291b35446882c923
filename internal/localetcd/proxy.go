package localetcd

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy forwards TCP connections to one address, and injects faults into them. It does not
// interpret the bytes, so TLS passes through it. It is safe for concurrent use.
type Proxy struct {
	target, addr string
	joined       sync.WaitGroup

	mu                sync.Mutex
	listener          net.Listener
	conns             map[net.Conn]struct{}
	requests, replies bool // held
	changed           sync.Cond
	trickles          atomic.Bool
}

// NewProxy listens on a free loopback port and forwards to target (host:port), which
// need not exist yet.
func NewProxy(target string) (*Proxy, error) {
	addr, err := FreeAddr()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, addr: addr, conns: map[net.Conn]struct{}{}}
	p.changed.L = &p.mu
	p.serveOn(l)
	return p, nil
}

// Addr returns the host:port of the proxy. Cut and Heal do not change it.
func (p *Proxy) Addr() string { return p.addr }

// Blackhole delays all bytes in both directions until Heal. Connections stay open, and new
// ones are accepted.
func (p *Proxy) Blackhole() { p.hold(true, &p.requests, &p.replies) }

// HoldRequests delays requests until Heal, and forwards answers.
func (p *Proxy) HoldRequests() { p.hold(true, &p.requests) }

// HoldReplies forwards requests and delays the answers until Heal: the caller times out
// although the server has executed the request.
func (p *Proxy) HoldReplies() { p.hold(true, &p.replies) }

// Trickle slows answers down until Heal: a time limit for each read is never exceeded.
func (p *Proxy) Trickle() { p.trickles.Store(true) }

func (p *Proxy) hold(on bool, directions ...*bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, held := range directions {
		*held = on
	}
	p.changed.Broadcast()
}

// pass waits while a direction is held.
func (p *Proxy) pass(held *bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for *held {
		p.changed.Wait()
	}
}

// Cut closes every connection and refuses new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.drop()
}

// Break closes every connection, with what it delays, and forwards new ones.
func (p *Proxy) Break() {
	p.mu.Lock()
	p.drop()
	p.mu.Unlock()
	p.hold(false, &p.requests, &p.replies)
}

func (p *Proxy) drop() {
	for c := range p.conns {
		_ = c.Close()
	}
}

// Heal forwards again, and listens again after a Cut.
func (p *Proxy) Heal() error {
	p.trickles.Store(false)
	p.hold(false, &p.requests, &p.replies)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("localetcd: proxy: %w", err)
	}
	p.serveOn(l)
	return nil
}

func (p *Proxy) serveOn(l net.Listener) {
	p.listener = l
	p.joined.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.joined.Go(func() { p.serve(l, conn) })
		}
	})
}

// Close closes all connections and returns when all goroutines have ended. It may be called
// more than once; no other method may be called afterwards.
func (p *Proxy) Close() {
	p.Cut()
	p.hold(false, &p.requests, &p.replies) // what was delayed fails, as its connection is closed
	p.joined.Wait()
}

func (p *Proxy) serve(l net.Listener, client net.Conn) {
	defer p.forget(client)
	if !p.keep(l, client) {
		return
	}
	p.pass(&p.requests)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.keep(l, server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pipe(server, client, &p.requests) })
	both.Go(func() { p.pipe(client, server, &p.replies) })
	both.Wait()
}

// pipe copies until either end closes, and then closes both. It does not close them while
// the direction is held: in a black hole neither end notices that the other has closed.
func (p *Proxy) pipe(dst, src net.Conn, held *bool) {
	defer func() { _ = dst.Close(); _ = src.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.pass(held)
		if werr := p.write(dst, buf[:n], held == &p.replies); err != nil || werr != nil {
			return
		}
	}
}

func (p *Proxy) write(dst net.Conn, b []byte, reply bool) error {
	const trickle = 300 * time.Millisecond // the pause after each byte of an answer that trickles
	for ; reply && p.trickles.Load() && len(b) > 1; b = b[1:] {
		if _, err := dst.Write(b[:1]); err != nil {
			return err
		}
		<-time.After(trickle)
	}
	_, err := dst.Write(b)
	return err
}

// keep registers a connection, unless Cut has closed its listener.
func (p *Proxy) keep(l net.Listener, c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != l {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
