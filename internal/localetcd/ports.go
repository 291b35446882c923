package localetcd

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are given out in blocks, each to one process. They are below the kernel's range of
// ephemeral ports: from that range a client that dials a dead member could get the port it
// dials, connect to itself, and prevent the member from binding its port.
const lowestPort, blockPorts, portBlocks = 15000, 100, 170

// ports are those of this process. It gives none out twice while there are others: the server of
// another process on the port of a dead member would prevent its restart, and answer its clients.
var ports freePorts //nolint:gochecknoglobals // as the ports are

type freePorts struct {
	mu   sync.Mutex
	own  []net.Listener // on the first port of each block, which keeps it from other processes
	next int            // counts through the ports of the blocks
}

// listen listens on a loopback address with a free port of this process.
func (f *freePorts) listen() (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == len(f.own)*(blockPorts-1) && !f.claim() {
		f.next = 0
	}
	for range len(f.own) * (blockPorts - 1) {
		first := f.own[f.next/(blockPorts-1)].Addr().(*net.TCPAddr).Port
		l, err := listenOn(first + 1 + f.next%(blockPorts-1))
		f.next++
		if err == nil {
			return l, nil
		}
		if f.next == len(f.own)*(blockPorts-1) && !f.claim() {
			f.next = 0
		}
	}
	return nil, errors.New("localetcd: no free port")
}

// claim adds a block that no other process has.
func (f *freePorts) claim() bool {
	for _, block := range rand.Perm(portBlocks) {
		if l, err := listenOn(lowestPort + block*blockPorts); err == nil {
			f.own = append(f.own, l)
			return true
		}
	}
	return false
}

func listenOn(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// freeAddrs returns n free loopback addresses.
func freeAddrs(n int) ([]string, error) {
	addrs := make([]string, 0, n)
	for range n {
		addr, err := FreeAddr()
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// FreeAddr returns a loopback address with a free port, for a server in another process. The
// port is chosen as for the servers of this package.
func FreeAddr() (string, error) {
	l, err := ports.listen()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
