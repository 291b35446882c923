package memetcd

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// etcd's limits on the TTL of a lease, in seconds. The minimum follows from its
// default election timeout.
const (
	minTTL = 2
	maxTTL = 9_000_000_000
)

type lease struct {
	id, ttl int64
	expiry  time.Time
}

func (c *Cluster) grant(r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	switch {
	case r.TTL > maxTTL:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	case c.leases[r.ID] != nil:
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := &lease{id: r.ID, ttl: max(r.TTL, minTTL)}
	for l.id == 0 || c.leases[l.id] != nil {
		c.granted++
		l.id = 0x1000_0000_0000_0000 + c.granted
	}
	c.leases[l.id] = l
	l.renew(time.Now())
	c.arm()
	return &pb.LeaseGrantResponse{Header: c.header(c.rev), ID: l.id, TTL: l.ttl}, nil
}

func (l *lease) renew(now time.Time) { l.expiry = now.Add(time.Duration(l.ttl) * time.Second) }

// renewed answers a keep-alive, with a TTL of zero where there is no such lease.
func (c *Cluster) renewed(id int64) *pb.LeaseKeepAliveResponse {
	resp := &pb.LeaseKeepAliveResponse{Header: c.header(c.rev), ID: id}
	if l := c.leases[id]; l != nil {
		l.renew(time.Now()) // the timer may fire too early now, and looks again
		resp.TTL = l.ttl
	}
	return resp
}

func (c *Cluster) revoke(id int64) (*pb.LeaseRevokeResponse, error) {
	if c.leases[id] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	w := &write{store: &c.store}
	for _, key := range c.attached(id) {
		w.delete(span{key: string(key)})
	}
	delete(c.leases, id)
	c.commit(w)
	c.arm()
	return &pb.LeaseRevokeResponse{Header: c.header(c.rev)}, nil
}

// attached returns a lease's keys, sorted.
func (c *Cluster) attached(id int64) (keys [][]byte) {
	for _, kv := range c.get(span{"", "\x00"}, c.rev) {
		if kv.Lease == id {
			keys = append(keys, kv.Key)
		}
	}
	return keys
}

func (c *Cluster) timeToLive(r *pb.LeaseTimeToLiveRequest) *pb.LeaseTimeToLiveResponse {
	resp := &pb.LeaseTimeToLiveResponse{Header: c.header(c.rev), ID: r.ID, TTL: -1}
	if l := c.leases[r.ID]; l != nil {
		resp.TTL, resp.GrantedTTL = int64(time.Until(l.expiry).Seconds()), l.ttl
		if r.Keys {
			resp.Keys = c.attached(r.ID)
		}
	}
	return resp
}

// ending returns the leases in the order of their ends.
func (c *Cluster) ending() []*lease {
	return slices.SortedFunc(maps.Values(c.leases), func(a, b *lease) int { return cmp.Or(a.expiry.Compare(b.expiry), cmp.Compare(a.id, b.id)) })
}

// arm sets the timer for the lease that ends next. Without a leader there is nobody to revoke it.
func (c *Cluster) arm() {
	c.expiry.Stop()
	if all := c.ending(); len(all) > 0 && !c.faults.NoLeader && !c.closed {
		c.expiry.Reset(max(time.Until(all[0].expiry), 0))
	}
}

// expire revokes what has ended, each lease in a transaction of its own.
func (c *Cluster) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.faults.NoLeader || c.closed {
		return
	}
	for _, l := range c.ending() {
		if l.expiry.After(time.Now()) {
			break
		}
		n := len(c.log)
		_, _ = c.revoke(l.id) // it is there
		c.observe(Applied{}, n)
	}
	c.arm()
}

// promote is what a new leader does: every lease gets its full TTL.
func (c *Cluster) promote() {
	for _, l := range c.leases {
		l.renew(time.Now())
	}
	c.arm()
}
