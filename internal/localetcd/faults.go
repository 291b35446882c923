package localetcd

import (
	"context"
	"fmt"
	"os"
	"slices"
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
