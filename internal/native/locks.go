package native

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Listing is what one prefix holds at one revision of etcd.
type Listing struct {
	At       time.Time
	Revision int64
	// Held counts the keys that hold, Waiting those that wait, Other the keys of another kind.
	Held, Waiting, Other int
	// Locks are those whose holders are oldest, in this order; Total counts all.
	Locks []Lock
	Total int
	// Oldest is the first Since of all locks; zero if nothing is held.
	Oldest time.Time
}

// Lock is a lock or an election with at least one key.
type Lock struct {
	Name string
	// Keys are the key that holds and, in the order in which they get the lock, the first of
	// those that wait; Waiting counts all of them.
	Keys    []Key
	Waiting int
	// Foreign reports whether the key that holds is not one of the lock's own.
	Foreign bool
	// Since is when the holder was first seen to hold.
	Since time.Time
}

// Key is a key below a prefix.
type Key struct {
	Key string
	// Created is its create_revision.
	Created int64
}

// Limits bound what is read below a prefix, and what is kept of it.
type Limits struct {
	// Keys is the maximum number of keys: more are an error. Locks and Waiters are the maximum
	// number of locks, and of those that wait for one, in a Listing.
	Keys, Locks, Waiters int
}

// Seen returns since when a key is known to hold a lock. It is called with one that holds it at the
// time of the listing.
type Seen func(name string, holder Key, at time.Time) time.Time

// maxKey is the length of the longest key that is taken for a lock's.
const maxKey = 1 << 10

// collector makes locks of the keys below a prefix, which it gets in order.
type collector struct {
	prefix  string
	limits  Limits
	seen    Seen
	listing Listing
	// open are the directories of which more keys may come: each is below the one before.
	open []*directory
}

// directory is a part of a key that ends with a slash, and what is below it.
type directory struct {
	path string
	// oldest is the oldest of all keys below the path. concurrency.Mutex waits for it, whether
	// it is the key of a mutex, of one with a longer name, or of something else.
	oldest Key
	// own are the oldest keys directly below the path that are named by a lease; count counts
	// all of them.
	own   []Key
	count int
}

func (c *collector) add(key string, created int64) {
	if len(key) > maxKey {
		c.listing.Other++
		return
	}
	c.closeUntil(key)
	from := len(c.prefix) - 1
	if n := len(c.open); n > 0 {
		from = len(c.open[n-1].path)
	}
	for i := from; i < len(key); i++ {
		if key[i] == '/' {
			c.open = append(c.open, &directory{path: key[:i+1]})
		}
	}
	d := c.open[len(c.open)-1]
	k := Key{key, created}
	d.oldest = older(d.oldest, k)
	if leaseOf(key) == 0 {
		c.listing.Other++
		return
	}
	d.count++
	d.insert(k, c.limits.Waiters+1)
}

// older returns the key that was created first; the zero Key is none.
func older(a, b Key) Key {
	if a.Key == "" || b.Created < a.Created {
		return b
	}
	return a
}

func byAge(a, b Key) int { return cmp.Compare(a.Created, b.Created) }

func (d *directory) insert(k Key, limit int) {
	if n := len(d.own); n == limit && byAge(d.own[n-1], k) <= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(d.own, k, func(a, b Key) int { return cmp.Or(byAge(a, b), -1) })
	d.own = slices.Insert(d.own[:min(len(d.own), limit-1)], i, k)
}

// leaseOf returns the lease in the last segment of a key, 0 for none.
func leaseOf(key string) int64 {
	segment := key[strings.LastIndexByte(key, '/')+1:]
	id, err := strconv.ParseInt(segment, 16, 64)
	if err != nil || leaseID(id) != segment {
		return 0
	}
	return id
}

// leaseID formats a lease as concurrency.Mutex and etcdctl do.
func leaseID(id int64) string { return strconv.FormatInt(id, 16) }

// closeUntil closes the open directories, from the last one, until one that the key is in.
func (c *collector) closeUntil(key string) {
	for n := len(c.open) - 1; n >= 0 && !strings.HasPrefix(key, c.open[n].path); n-- {
		d := c.open[n]
		c.open = c.open[:n]
		if n > 0 {
			parent := c.open[n-1]
			parent.oldest = older(parent.oldest, d.oldest)
		}
		if d.count > 0 {
			c.lock(d)
		}
	}
}

// lock adds the lock of a directory.
func (c *collector) lock(d *directory) {
	l := Lock{Name: strings.TrimSuffix(d.path, "/"), Keys: d.own, Waiting: d.count}
	if l.Foreign = d.own[0] != d.oldest; l.Foreign {
		l.Keys = slices.Insert(d.own, 0, d.oldest) // all of its own keys wait for it
	} else {
		l.Waiting--
		c.listing.Held++
	}
	l.Keys = l.Keys[:min(len(l.Keys), c.limits.Waiters+1)]
	c.listing.Waiting += l.Waiting
	c.listing.Total++
	l.Since = c.seen(l.Name, l.Keys[0], c.listing.At)
	if c.listing.Oldest.IsZero() || l.Since.Before(c.listing.Oldest) {
		c.listing.Oldest = l.Since
	}
	if c.listing.Locks = append(c.listing.Locks, l); len(c.listing.Locks) >= 2*c.limits.Locks {
		c.trim()
	}
}

// trim keeps the locks with the oldest holders.
func (c *collector) trim() {
	all := c.listing.Locks
	slices.SortFunc(all, func(a, b Lock) int { return cmp.Or(byAge(a.Keys[0], b.Keys[0]), strings.Compare(a.Name, b.Name)) })
	kept := min(len(all), c.limits.Locks)
	clear(all[kept:])
	c.listing.Locks = all[:kept]
}

// done returns the listing once all keys were added.
func (c *collector) done() Listing {
	c.closeUntil("")
	c.trim()
	return c.listing
}
