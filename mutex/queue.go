package mutex

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// place is where a claim is among those that wait for its lock, as of its revision. The lock is safe whatever
// the tickets are: they only keep a claim from taking it.
type place struct {
	fair  bool             // it takes the lock only in turn; otherwise it takes what is free
	lease clientv3.LeaseID // for its ticket, 0 if it has none yet

	ticket int64    // create_revision of its ticket, 0 if it has none
	queued bool     // there may be one in etcd
	before []string // the tickets before its own: the nearest two, and the first of the name
	over   string   // the ticket that is passed over, "" for none
	free   []string // of its names
}

// head returns the first ticket of the name, as far as it was read, or "" if that is the claim's own.
func (p place) head() string {
	if len(p.before) == 0 {
		return ""
	}
	return p.before[len(p.before)-1]
}

// tickets returns the key of the claim's ticket, and the range of all of the name.
func (cl *claim) tickets() (own, from, end string) {
	from, end = protocol.TicketsOf(cl.c.settings.waiters, cl.base)
	return from + cl.uuid, from, end
}

// queue has an attempt take the lock only if no others wait, or if it has a ticket; with a lease it puts one.
func (cl *claim) queue(s *step) {
	own, from, end := cl.tickets()
	switch {
	case !cl.fair:
	case cl.ticket != 0:
		s.compares = append(s.compares, clientv3.Compare(clientv3.CreateRevision(own), "=", cl.ticket))
		s.otherwise = append(s.otherwise, clientv3.OpGet(own, clientv3.WithKeysOnly()))
		s.then = append(s.then, clientv3.OpDelete(own))
		if cl.over != "" { // one that is passed over only once
			s.compares = append(s.compares, clientv3.Compare(clientv3.Version(cl.over), ">", 0))
			s.then = append(s.then, clientv3.OpDelete(cl.over))
		}
	default:
		s.compares = append(s.compares, clientv3.Compare(clientv3.Version(from), "=", 0).WithRange(end))
		if cl.lease != 0 {
			cl.queued = true
			ticket := protocol.Ticket{
				UUID: cl.uuid, Hostname: cl.c.hostname, PID: strconv.Itoa(os.Getpid()), Owner: cl.set.owner, Purpose: cl.set.purpose,
				Since: cl.since.UTC(), Slots: cl.set.slots, Holds: cl.holds,
			}
			s.otherwise = slices.Concat(cl.c.store.read(cl.name), cl.earlier()[:1], // the first matters once the lock is free for long
				[]clientv3.Op{clientv3.OpGet(own, clientv3.WithKeysOnly()), clientv3.OpPut(own, ticket.Value(), clientv3.WithLease(cl.lease))})
		}
	}
}

// earlier reads the last two of the tickets before the claim's own, and the first.
func (cl *claim) earlier() []clientv3.Op {
	_, from, end := cl.tickets()
	get := func(order clientv3.SortOrder, n int64) clientv3.Op {
		return clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(n),
			clientv3.WithSort(clientv3.SortByCreateRevision, order), clientv3.WithMaxCreateRev(max(cl.ticket-1, 0))) // 0 is no limit
	}
	return []clientv3.Op{get(clientv3.SortDescend, 2), get(clientv3.SortAscend, 1)}
}

// saw notes who holds the lock of a name: the zero Holder if it is free. It reports whether that shows the place of the
// claim: not where another than the one before it has taken the lock.
func (cl *claim) saw(name string, h Holder) bool {
	cl.free = slices.DeleteFunc(cl.free, func(other string) bool { return other == name })
	if h.Token == 0 || h.UUID == cl.uuid { // which an attempt without an answer has taken
		cl.free = append(cl.free, name)
	} else if name == cl.name && (h.UUID != cl.holder.UUID || h.Hostname != "") { // with its record
		cl.holder = h
	}
	_, from, _ := cl.tickets()
	if len(cl.before) == 1 && cl.before[0] == from+h.UUID {
		cl.before = nil
		return true
	}
	return cl.ticket == 0
}

// seat notes the place of the claim after an attempt that has not taken the lock.
func (cl *claim) seat(a answer) {
	own, _, _ := cl.tickets()
	switch kv := a.found[own]; {
	case kv != nil:
		cl.ticket = kv.CreateRevision
	case cl.ticket != 0 || cl.lease == 0:
		cl.ticket = 0
	default:
		cl.ticket = a.revision
		cl.line(a)
	}
}

// line notes the tickets before the claim's own.
func (cl *claim) line(a answer) {
	own, from, _ := cl.tickets()
	var found []*mvccpb.KeyValue
	for key, kv := range a.found {
		if strings.HasPrefix(key, from) && key != own {
			found = append(found, kv)
		}
	}
	slices.SortFunc(found, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	cl.before = nil
	for _, kv := range found {
		cl.before = append(cl.before, string(kv.Key))
	}
}

// position is the request that reads which locks of a claim are free, and the tickets before its own, if it still has one.
type position struct {
	outcome
	cl *claim
}

func (p *position) step() step {
	own, _, _ := p.cl.tickets()
	var holders []clientv3.Op
	for names := range slices.Chunk(p.cl.names, maxTxnOps-20) {
		group := make([]clientv3.Op, len(names))
		for i, name := range names {
			group[i] = clientv3.OpGet(p.cl.c.store.key(name, protocol.FieldUUID))
		}
		if holders = append(holders, clientv3.OpTxn(nil, group, nil)); len(names) == len(p.cl.names) {
			holders = group
		}
	}
	if p.cl.ticket == 0 {
		return step{then: holders}
	}
	has := clientv3.Compare(clientv3.CreateRevision(own), "=", p.cl.ticket)
	return step{[]clientv3.Cmp{has}, append(p.cl.earlier(), holders...), holders}
}

func (p *position) answered(a answer) bool {
	cl := p.cl
	switch cl.revision = a.revision; {
	case !a.succeeded:
		cl.ticket = 0
	case cl.ticket != 0:
		cl.line(a)
	}
	for _, name := range cl.names {
		h, _ := cl.c.store.holder(name, a.found)
		cl.saw(name, h)
	}
	return true
}
