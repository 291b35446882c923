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

// Kill ends member i without grace: open connections break, its port refuses. It
// returns when nothing of the server is left; killing a dead member does nothing.
func (c *Cluster) Kill(i int) { c.members[i].kill() }

// Restart starts the named members again, or all dead ones when none is named, on their
// old addresses and whatever data they have, and waits until they serve. Two dead
// members of three must be named together: neither is ready without the other.
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

// Wipe deletes the data of a dead single member: its next start is an empty cluster
// with another cluster id, and revisions begin again at 1.
func (c *Cluster) Wipe() error {
	m, err := c.deadSingle("wipe")
	if err != nil {
		return err
	}
	m.generation++
	return os.RemoveAll(m.dir)
}

// Save copies the data of a dead single member aside, over an earlier copy.
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

// Revert restores the copy made by Save for a dead single member: the same cluster
// id with an older revision, as a restored volume snapshot has it.
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

// freeAddrs picks n loopback addresses nobody listens on, below the range from which
// the kernel takes local ports: in that range a client dialling a dead member could be
// given the very port it dials, connect to itself and so keep the member from binding.
func freeAddrs(n int) ([]string, error) {
	const low, high = 15000, 32000
	held := make([]net.Listener, 0, n)
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	var addrs []string
	var last error
	for range 100 * n {
		if len(addrs) == n {
			return addrs, nil
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(low+rand.IntN(high-low))))
		if err != nil {
			last = err
			continue
		}
		held = append(held, l)
		addrs = append(addrs, l.Addr().String())
	}
	return nil, fmt.Errorf("localetcd: no free port: %w", last)
}
