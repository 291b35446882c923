package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// moment is a request of a daemon. A fault with one happens right before the first such request since its At, so that
// it lies between two steps of the daemon however short that is.
type moment string

const (
	atProbe    moment = "probe"
	atRead     moment = "read"     // of a lock that is due
	atRemoval  moment = "removal"  // after the verdict
	atRevision moment = "revision" // is read, by the scanner
	atCheck    moment = "check"    // of the newest write that was seen
	atListing  moment = "listing"
	atWatch    moment = "watch"
)

// removes returns the locks that a removal deletes keys of.
func removes(req memetcd.Message) (names []string) {
	removals(req, func(t *pb.TxnRequest) {
		for _, op := range t.Success {
			if name, _, below := split(op.GetRequestDeleteRange().GetKey()); below && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	})
	return names
}

// momentOf returns what a request is, and which lock it is about.
func momentOf(req memetcd.Message) (m moment, lock string) {
	switch r := req.(type) {
	case *pb.AlarmRequest:
		return atProbe, ""
	case *pb.RangeRequest:
		name, _, below := split(r.Key)
		switch {
		case string(r.Key) == prefix && len(r.RangeEnd) == 0:
			return atRevision, ""
		case below && len(r.RangeEnd) == 0:
			return atCheck, ""
		case below:
			return atRead, name
		}
	case *pb.TxnRequest:
		if all := removes(r); len(all) > 0 {
			m, lock = atRemoval, all[len(all)-1]
		}
		for _, op := range r.Success {
			if name, _, below := split(op.GetRequestRange().GetKey()); below && m == "" {
				m, lock = atRead, name
			}
		}
	}
	return m, lock
}

// sprung is a fault that waited for a request of a daemon, which waits for it now.
type sprung struct {
	fault
	d    *daemon
	lock string
	done chan struct{}
}

// trap is a fault that happened at a request about a lock.
type trap struct {
	fault
	lock string
}

// reaches lets a fault happen that waits for a request of the daemon.
func (d *daemon) reaches(ctx context.Context, m moment, lock string, after bool) {
	w := d.w
	w.trapping.Lock()
	i := slices.IndexFunc(w.traps, func(f fault) bool {
		return f.On == m && m != "" && f.After == after && f.At <= w.elapsed() && !w.trapped[trap{f, lock}]
	})
	if i < 0 {
		w.trapping.Unlock()
		return
	}
	s := sprung{w.traps[i], d, lock, make(chan struct{})}
	if w.trapped[trap{s.fault, lock}] = true; !s.Again {
		w.traps = slices.Delete(slices.Clone(w.traps), i, i+1)
	}
	w.trapping.Unlock()
	select {
	case w.sprung <- s:
	case <-w.ctx.Done():
		return
	}
	select {
	case <-s.done:
		sleep(ctx, s.Waits)
	case <-w.ctx.Done():
	}
}

// spring lets the fault happen, in the timeline.
func (w *world) spring(s sprung) {
	f, now := s.fault, w.elapsed()
	if f.restores() {
		f.By = now - f.At
		w.snapshots[now] = w.snapshots[f.At]
	}
	f.At = now
	w.happens(f, s.lock)
	if s.Waits > 0 {
		w.happens(fault{Kind: stalled, On: s.On, After: s.After, Who: replicas, N: s.d.replica + 1, At: now, For: s.Waits}, "")
	}
	if s.Seen {
		synctest.Wait() // all others notice it first
	}
	close(s.done)
}

// trapped is the interceptor of the daemon's requests, streamed those of its streams.
func (d *daemon) trapped(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m, lock := momentOf(req.(memetcd.Message))
	d.reaches(ctx, m, lock, false)
	err := invoke(ctx, method, req, reply, cc, opts...)
	d.reaches(ctx, m, lock, true)
	return err
}

func (d *daemon) streamed(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	switch {
	case strings.HasSuffix(method, "/RangeStream"):
		d.reaches(ctx, atListing, "", false)
	case strings.HasSuffix(method, "/Watch"):
		d.reaches(ctx, atWatch, "", false)
		s, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, err
		}
		w := watched{s, d, make(chan shown, 1000), make(chan struct{})}
		d.w.people.Go(w.receive)
		return w, nil
	}
	return open(ctx, desc, cc, method, opts...)
}

// watched is the stream of watches, which alone may be silent, or late until it breaks.
type watched struct {
	grpc.ClientStream
	d      *daemon
	shown  chan shown
	broken chan struct{}
}

// shown is what a stream has shown at a time.
type shown struct {
	resp *pb.WatchResponse
	at   time.Duration
}

func (s watched) receive() {
	defer close(s.broken)
	for {
		resp := new(pb.WatchResponse)
		if s.ClientStream.RecvMsg(resp) != nil {
			return
		}
		select {
		case s.shown <- shown{resp, s.d.w.elapsed()}:
		case <-s.Context().Done():
			return
		}
	}
}

// RecvMsg implements grpc.ClientStream.
func (s watched) RecvMsg(msg any) error {
	var next shown
	select {
	case next = <-s.shown:
	case <-s.broken:
	}
	now, silent, late := s.d.w.elapsed(), time.Duration(0), time.Duration(0)
	for _, f := range s.d.w.judge.faults() {
		switch {
		case !f.meets(replicas, s.d.replica):
		case f.Kind == silentWatch && f.At <= now && now < f.end():
			silent = max(silent, f.end()-now)
		case f.Kind == lateWatch && f.At <= next.at && next.at < f.end():
			late = max(late, next.at+f.By-now)
		}
	}
	if silent > 0 {
		sleep(s.Context(), silent)
	}
	if late > silent {
		select {
		case <-time.After(late - silent):
		case <-s.broken:
			next.resp = nil
		}
	}
	if next.resp == nil {
		return s.ClientStream.RecvMsg(msg) // the error
	}
	proto.Merge(msg.(*pb.WatchResponse), next.resp)
	return nil
}

// acts lets the holder of a lock, or another client, do something out of turn.
func (w *world) acts(f fault, lock string) {
	if lock == "" {
		lock = w.Holders[f.N%len(w.Holders)].Name
	}
	h := w.holdings[w.judge.holderOf(lock)]
	for i := range w.Holders { // one of before comes back
		if o := w.holdings[fmt.Sprint("holder-", i)]; h == nil && o.Name == lock {
			h = o
		}
	}
	if h == nil {
		return
	}
	w.people.Go(func() {
		switch f.Kind {
		case renewed:
			_, _ = h.commit(w.ctx, h.ifMine(), h.renewal())
		case released:
			h.release(w.ctx)
		case noted:
			_, _ = h.commit(w.ctx, h.ifMine(), []clientv3.Op{clientv3.OpPut(key(lock, []string{"status", "x", "backtrace", "zone"}[f.N%4]), w.elapsed().String())})
		}
	})
	if f.Kind != overwritten && f.Kind != retaken {
		return
	}
	next := *h.holder
	next.Start, next.Dies, next.Releases, next.Stall, next.LockedAt = w.elapsed(), 0, 0, 0, f.N%2 == 0
	if f.N%3 == 0 {
		next.Interval = 0
	}
	n := &holding{holder: &next, w: w, uuid: w.judge.enter(&next)}
	w.holdings[n.uuid] = n
	w.people.Go(func() {
		if f.Kind == retaken {
			h.release(w.ctx)
			n.acquire(w.ctx)
		} else {
			_, _ = n.commit(w.ctx, clientv3.Compare(clientv3.Version(key(lock, "uuid")), ">", 0), n.taking())
		}
		n.renewals(w.ctx)
	})
}

// acting reports whether a fault is none, but something that a client does.
func (f fault) acting() bool {
	switch f.Kind {
	case renewed, released, overwritten, retaken, noted:
		return true
	}
	return false
}

// happens begins a fault now, and ends it later.
func (w *world) happens(f fault, lock string) {
	if f.acting() {
		w.acts(f, lock)
		return
	}
	w.judge.mu.Lock()
	w.Faults = append(slices.Clip(w.Faults), f)
	w.judge.mu.Unlock()
	w.begin(f)
	w.plan(event{f.end(), func() { w.stop(f) }})
}

// plan adds to the timeline.
func (w *world) plan(e event) {
	i := slices.IndexFunc(w.events, func(o event) bool { return o.at > e.at })
	if i < 0 {
		i = len(w.events)
	}
	w.events = slices.Insert(w.events, i, e)
}

// timeline lets the faults happen, each while everything else waits for time to pass.
func (w *world) timeline() {
	w.plan(event{w.Lasts, func() {}})
	for _, at := range w.looks() {
		w.plan(event{at, w.look})
	}
	for _, f := range w.drawn {
		save := func() { w.snapshots[f.At] = backup{w.etcd.save(), w.judge.snapshot()} }
		switch {
		case f.On != "":
			w.plan(event{f.At, func() {
				if f.restores() {
					save()
				}
				w.trapping.Lock()
				defer w.trapping.Unlock()
				w.traps = append(w.traps, f)
			}})
			continue
		case f.restores():
			w.plan(event{max(0, f.At-f.By), save})
		}
		if f.acting() {
			w.plan(event{f.At, func() { w.acts(f, "") }})
			continue
		}
		w.plan(event{f.At, func() { w.begin(f) }})
		w.plan(event{f.end(), func() { w.stop(f) }})
	}
	for len(w.events) > 0 {
		next := time.NewTimer(w.events[0].at - w.elapsed())
		select {
		case <-next.C:
			synctest.Wait()
			e := w.events[0]
			w.events = w.events[1:]
			e.do()
		case s := <-w.sprung:
			next.Stop()
			synctest.Wait()
			w.spring(s)
		}
	}
}
