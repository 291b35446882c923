package memetcd

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// syncPause is how long a watcher that starts in the past waits until it catches up.
	syncPause = 100 * time.Millisecond
	// syncBatch is how many revisions one response has then.
	syncBatch = 1000
)

// watchStream is etcd's end of a stream of watchers.
type watchStream struct {
	next     int64
	watchers []*watcher // in the order of their ids
}

type watcher struct {
	id   int64
	span span
	// start is what the client asked for, next the revision that comes next.
	start, next int64
	// catchUp is when a watcher that is behind catches up, zero for one that is not.
	catchUp time.Time
	filters []pb.WatchCreateRequest_FilterType
	prev    bool
}

func (ws *watchStream) receive(s *stream, req Message) {
	rev := s.link.visible()
	head := s.link.cluster.header(rev)
	switch r := req.(*pb.WatchRequest).RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		ws.create(s, r.CreateRequest, rev)
	case *pb.WatchRequest_CancelRequest:
		i := slices.IndexFunc(ws.watchers, func(w *watcher) bool { return w.id == r.CancelRequest.WatchId })
		if i >= 0 {
			ws.watchers = slices.Delete(ws.watchers, i, i+1)
			s.send(&pb.WatchResponse{Header: head, WatchId: r.CancelRequest.WatchId, Canceled: true}, 0, nil)
		}
	case *pb.WatchRequest_ProgressRequest:
		ws.pump(s)
		behind := func(w *watcher) bool { return !w.catchUp.IsZero() || rev < w.start } // so is one that starts ahead of the store
		if len(ws.watchers) > 0 && !slices.ContainsFunc(ws.watchers, behind) {
			s.send(&pb.WatchResponse{Header: head, WatchId: clientv3.InvalidWatchID}, 0, nil)
		}
	}
}

func (ws *watchStream) create(s *stream, r *pb.WatchCreateRequest, rev int64) {
	c := s.link.cluster
	if len(r.Key) == 0 {
		r.Key = []byte{0}
	}
	w := &watcher{id: ws.next, span: spanOf(r.Key, r.RangeEnd), start: r.StartRevision, filters: r.Filters, prev: r.PrevKv}
	resp := &pb.WatchResponse{Header: c.header(rev), WatchId: w.id, Created: true}
	if reason := ws.refuse(s, w); reason != "" {
		resp.WatchId, resp.Canceled, resp.CancelReason = clientv3.InvalidWatchID, true, reason
		s.send(resp, 0, nil)
		return
	}
	w.next = max(rev+1, w.start)
	if w.start != 0 && w.start <= rev {
		w.next, w.catchUp = w.start, time.Now().Add(syncPause)
	}
	ws.next++
	ws.watchers = append(ws.watchers, w)
	s.send(resp, 0, nil)
}

// refuse returns why a watcher cannot be, "" for no reason.
func (ws *watchStream) refuse(s *stream, w *watcher) string {
	if w.start < 0 {
		return rpctypes.ErrCompacted.Error()
	}
	if err := s.link.authorize(s.token, []span{w.span}); err != nil {
		return err.Error()
	}
	if w.span.end != "" && w.span.end != "\x00" && w.span.key >= w.span.end {
		return "mvcc: watcher range is empty"
	}
	return ""
}

// pump sends the events that the member has by now.
func (ws *watchStream) pump(s *stream) (again time.Time) {
	now, c, rev := time.Now(), s.link.cluster, s.link.visible()
	s.own = Faults{}
	ws.watchers = slices.DeleteFunc(ws.watchers, func(w *watcher) (gone bool) {
		if !w.catchUp.IsZero() {
			if now.Before(w.catchUp) {
				again = earliest(again, w.catchUp)
				return false
			}
			if w.next < c.compacted {
				s.send(&pb.WatchResponse{Header: c.header(0), WatchId: w.id, CompactRevision: c.compacted, Canceled: true}, 0, nil)
				return true
			}
			again = earliest(again, w.sync(s, now, rev))
			return false
		}
		for _, commit := range c.since(w.next) {
			if commit.rev > rev {
				break
			}
			w.next = commit.rev + 1
			w.send(s, commit.rev, w.match(commit.events, c.compacted))
		}
		return false
	})
	return earliest(again, s.link.shows(rev+1))
}

// sync brings a watcher up to revision rev in one response, whose header has that
// revision however old its events are.
func (w *watcher) sync(s *stream, now time.Time, rev int64) (again time.Time) {
	c := s.link.cluster
	var events []*mvccpb.Event
	revisions := 0
	w.catchUp = time.Time{}
	for _, commit := range c.since(w.next) {
		if commit.rev > rev {
			break
		}
		matching := w.match(commit.events, c.compacted)
		if len(matching) > 0 {
			if revisions++; revisions > syncBatch {
				w.next, w.catchUp = commit.rev, now.Add(syncPause)
				w.send(s, rev, events)
				return w.catchUp
			}
		}
		events = append(events, matching...)
	}
	w.next = max(w.next, rev+1)
	w.send(s, rev, events)
	return time.Time{}
}

func (w *watcher) send(s *stream, rev int64, events []*mvccpb.Event) {
	if len(events) > 0 {
		s.send(&pb.WatchResponse{Header: s.link.cluster.header(rev), WatchId: w.id, Events: events}, 0, nil)
	}
}

// match returns the events that a watcher wants, as it wants them.
func (w *watcher) match(events []*mvccpb.Event, compacted int64) (wanted []*mvccpb.Event) {
	for _, ev := range events {
		put := ev.Type == clientv3.EventTypePut
		if !w.span.contains(string(ev.Kv.Key)) ||
			put && slices.Contains(w.filters, pb.WatchCreateRequest_NOPUT) ||
			!put && slices.Contains(w.filters, pb.WatchCreateRequest_NODELETE) {
			continue
		}
		own := &mvccpb.Event{Type: ev.Type, Kv: ev.Kv}
		if w.prev && ev.Kv.ModRevision-1 >= compacted {
			own.PrevKv = ev.PrevKv
		}
		wanted = append(wanted, own)
	}
	return wanted
}
