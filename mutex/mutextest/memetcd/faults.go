package memetcd

import (
	"sort"
	"time"
)

// Faults are what goes wrong between one client and etcd, or for all clients. The
// zero value is none.
type Faults struct {
	// Refuse fails requests and new streams with Unavailable at once, and breaks the connection.
	Refuse bool
	// HoldRequests delays what the client sends until it is lifted; a request whose caller gives
	// up, or whose connection breaks, never arrives. HoldAnswers does the same to what etcd sends,
	// after the request was carried out. Both together make etcd unreachable. A connection that
	// breaks meanwhile is replaced when neither direction is blocked any more.
	HoldRequests, HoldAnswers bool
	// Request and Answer are how long each takes to arrive. A request in flight arrives
	// even when its caller has given up meanwhile.
	Request, Answer time.Duration
	// Lag is how far the member that the client is connected to is behind the others: it gets every
	// revision that much later. Answers wait until the member has the revision that they are about.
	Lag time.Duration
	// NoLeader: the member is in no quorum, and sees no new revision. What needs a
	// quorum waits for 7 s and fails. Set for the cluster it also stops the expiry of
	// leases; when it is lifted every lease has its full TTL again.
	NoLeader bool
}

func (f Faults) with(o Faults) Faults {
	return Faults{
		Refuse:       f.Refuse || o.Refuse,
		HoldRequests: f.HoldRequests || o.HoldRequests,
		HoldAnswers:  f.HoldAnswers || o.HoldAnswers,
		Request:      f.Request + o.Request,
		Answer:       f.Answer + o.Answer,
		Lag:          f.Lag + o.Lag,
		NoLeader:     f.NoLeader || o.NoLeader,
	}
}

// Unreachable are the faults of a network that carries nothing.
func Unreachable() Faults { return Faults{HoldRequests: true, HoldAnswers: true} }

// Set replaces the faults that all clients have in common.
func (c *Cluster) Set(f Faults) {
	c.do(func() {
		elected := c.faults.NoLeader && !f.NoLeader
		for _, l := range c.links {
			l.visible()
		}
		c.faults = f
		for _, l := range c.links {
			l.settle()
		}
		if elected {
			c.promote()
		}
		c.arm()
	})
}

// Break resets all connections, as a restart of all members does.
func (c *Cluster) Break() {
	c.do(func() {
		for _, l := range c.links {
			l.reset()
		}
	})
}

// Set replaces the client's own faults, which add to those of the cluster.
func (l *Link) Set(f Faults) {
	l.cluster.do(func() {
		l.visible()
		l.faults = f
		l.settle()
	})
}

// Break resets the client's connection: open streams and pending requests fail with Unavailable,
// and the next connection may be to another member, which can know less than the one before.
func (l *Link) Break() { l.cluster.do(l.reset) }

func (l *Link) reset() {
	l.connection++
	l.began = time.Now()
	l.floor = 0
	l.cut = l.held()
}

// held reports whether one direction at least is blocked: no connection comes about.
func (l *Link) held() bool {
	f := l.faults.with(l.cluster.faults)
	return f.HoldRequests || f.HoldAnswers
}

// effective are the faults of a client, the cluster's included.
func (l *Link) effective() Faults {
	f := l.faults.with(l.cluster.faults)
	f.HoldRequests = f.HoldRequests || l.cut
	return f
}

func (l *Link) settle() {
	held, began, now := l.held(), l.silent.IsZero(), time.Now()
	l.cut = l.cut && held
	f := l.effective()
	since(&l.leaderless, f.NoLeader, now)
	if f.Refuse {
		l.reset()
	}
	since(&l.silent, held, now)
	if l.cluster.keepAlive > 0 && held && began {
		time.AfterFunc(l.cluster.keepAlive, func() {
			l.cluster.do(func() {
				if l.silent.Equal(now) {
					l.reset()
				}
			})
		})
	}
}

// since keeps in t when something began that is on, or the zero time.
func since(t *time.Time, on bool, now time.Time) {
	if !on {
		*t = time.Time{}
	} else if t.IsZero() {
		*t = now
	}
}

// visible returns the newest revision of the member that the client is connected to.
func (l *Link) visible() int64 {
	c, f := l.cluster, l.effective()
	head := c.rev
	switch {
	case f.NoLeader && l.floor > 0:
		head = l.floor
	case f.Lag > 0:
		head = max(l.floor, c.revisionAt(time.Now().Add(-f.Lag)))
	}
	l.floor = head
	return head
}

// shows returns when the member gets a revision, the zero time where it waits for
// something else than time.
func (l *Link) shows(rev int64) time.Time {
	f, later := l.effective(), l.cluster.since(rev)
	if f.Lag == 0 || f.NoLeader || len(later) == 0 {
		return time.Time{}
	}
	return later[0].at.Add(f.Lag)
}

// revisionAt returns the newest revision of the store at a time.
func (s *store) revisionAt(at time.Time) int64 {
	i := sort.Search(len(s.log), func(i int) bool { return s.log[i].at.After(at) })
	if i == len(s.log) {
		return s.rev // after the last commit, and where a restore bumped it
	}
	return s.log[i].rev - 1
}

// since returns the commits from revision rev on.
func (s *store) since(rev int64) []commit {
	return s.log[sort.Search(len(s.log), func(i int) bool { return s.log[i].rev >= rev }):]
}
