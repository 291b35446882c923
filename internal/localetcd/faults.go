package localetcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
)

// Kill stops member i at once: open connections break, and its port refuses new ones. It
// returns when the server has ended. Killing a dead member does nothing.
func (c *Cluster) Kill(i int) { c.members[i].kill() }

// Restart starts the given members again, or all dead members if none is given, with their
// addresses and their data, and waits until they serve. Of two dead members of three both
// must be started together, since neither becomes ready without the other.
func (c *Cluster) Restart(ctx context.Context, indexes ...int) error {
	var starting []*member
	for i, m := range c.members {
		if !m.running() && (len(indexes) == 0 || slices.Contains(indexes, i)) {
			starting = append(starting, m)
		}
	}
	for _, m := range starting {
		if err := m.start(); err != nil {
			return err
		}
	}
	for _, m := range starting {
		if err := m.waitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Wipe deletes the data of a dead single member. When it starts again it is an empty
// cluster with another cluster id, and its revisions begin at 1.
func (c *Cluster) Wipe() error {
	m, err := c.deadSingle("wipe")
	if err != nil {
		return err
	}
	m.generation++
	return os.RemoveAll(m.dir)
}

// Save copies the data of a dead single member for Revert. It replaces an earlier copy.
func (c *Cluster) Save() error {
	m, err := c.deadSingle("save")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(m.saved()); err != nil {
		return err
	}
	return os.CopyFS(m.saved(), os.DirFS(m.dir))
}

// Revert restores the copy made by Save for a dead single member: the same cluster id with
// an older revision, as after a restore from a volume snapshot.
func (c *Cluster) Revert() error {
	m, err := c.deadSingle("revert")
	if err != nil {
		return err
	}
	if _, err := os.Stat(m.saved()); err != nil {
		return fmt.Errorf("localetcd: nothing saved: %w", err)
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return err
	}
	return os.CopyFS(m.dir, os.DirFS(m.saved()))
}

func (m *member) saved() string { return m.dir + ".saved" }

func (c *Cluster) deadSingle(verb string) (*member, error) {
	switch {
	case len(c.members) != 1:
		return nil, fmt.Errorf("localetcd: %s: only a single member can", verb)
	case c.members[0].running():
		return nil, fmt.Errorf("localetcd: %s: kill the member first", verb)
	}
	return c.members[0], nil
}

// freeAddrs returns n free loopback addresses.
func freeAddrs(n int) ([]string, error) {
	held := make([]net.Listener, 0, n)
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	addrs := make([]string, 0, n)
	for range n {
		l, err := listenFree()
		if err != nil {
			return nil, err
		}
		held = append(held, l)
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// FreeAddr returns a loopback address with a free port, for a server in another process. The
// port is chosen as for the servers of this package.
func FreeAddr() (string, error) {
	l, err := listenFree()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// listenFree listens on a free loopback address. Its port is below the kernel's range of
// ephemeral ports: from that range a client that dials a dead member could get the port it
// dials, connect to itself, and prevent the member from binding its port.
func listenFree() (net.Listener, error) {
	const low, high, tries = 15000, 32000, 100
	var last error
	for range tries {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(low+rand.IntN(high-low))))
		if err == nil {
			return l, nil
		}
		last = err
	}
	return nil, fmt.Errorf("localetcd: no free port: %w", last)
}
