package sim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// TestJudgesConvict takes one rule at a time out of the daemon. The same history is
// innocent with the rule in place.
func TestJudgesConvict(t *testing.T) {
	dead := lease("a", 20, 30).dies(32) // due at 62 s: renewed at 30 s, and 2 s of grace
	short := holder{Name: "a", Start: s(1), TTL: s(3), Retry: s(20), LockedAt: true, AliveAt: true}
	orphan := lease("a", 5, 30)
	orphan.Releases, orphan.Blind = s(10), true                                                                     // due at 70 s
	busy := holder{Name: "a", Start: s(20), TTL: s(30), Retry: s(20), LockedAt: true, AliveAt: true, Note: s(32.6)} // between the sending and the arrival of its removal
	second := dead
	second.Start, second.Dies, second.Deadline, second.Interval = s(30), s(35), "1766620860", 0 // due at 62 s as well
	first := second
	first.Start, first.Dies, first.Releases = s(20), 0, s(25)
	justBefore := []fault{{Kind: rolledBack, At: s(61.995 + drift(30)), By: s(39), Writes: 500}}
	fresh := holder{Name: "b", Start: s(45), TTL: s(60), Retry: s(20), LockedAt: true, AliveAt: true, Dies: s(46)}

	for _, c := range []struct {
		rule    string
		out     without
		promise string
		history history
	}{
		{"no holds", without{signals: allWell}, "S3", history{Holders: []holder{short}}},
		{"no pause", without{signals: unpaused}, "S3", history{Holders: []holder{dead}, Faults: []fault{{Kind: paused, At: s(50), For: s(40)}}}},
		{"no compare of the pauses", without{request: uncomparedPauses}, "S3", history{Holders: []holder{dead}, Faults: []fault{
			{Kind: latency, Who: replicas, At: s(61.995 + drift(30)), For: s(0.05), By: s(4.9)}, {Kind: paused, At: s(62.2), For: s(30)}}}},
		{"no overdue probe", without{signals: neverOverdue, confirmed: true}, "S3",
			history{Holders: []holder{orphan}, Faults: []fault{{Kind: slowDisk, At: s(66), For: s(4.5)}}}},
		{"no patience", without{source: newImpatient}, "S2", history{Holders: []holder{dead}, Faults: []fault{{Kind: killed, Who: replicas, At: s(45), For: s(1)}}}},
		{"no outage allowance", without{allowance: true}, "S3", history{Holders: []holder{dead}, Faults: []fault{{Kind: unreachable, At: s(50), For: s(4)}}}},
		{"no compare of the newest revision", without{request: uncompared(pb.Compare_MOD, "")}, "S1",
			history{Holders: []holder{busy}, Faults: []fault{{Kind: latency, Who: replicas, At: s(40), For: s(60), By: s(0.4)}}}},
		{"no compare of the deadline", without{request: uncompared(pb.Compare_VALUE, "auto_unlock_at"), answer: noHistory, departs: true}, "S1", history{Holders: []holder{dead}, Faults: justBefore}},
		{"no compare of the uuid", without{request: uncompared(pb.Compare_VALUE, "uuid"), answer: noHistory, departs: true}, "S1", history{Holders: []holder{first, second}, Faults: justBefore}},
		{"no history check", without{answer: noHistory}, "S3",
			history{Holders: []holder{dead, fresh}, Faults: []fault{{Kind: unreachable, Who: replicas, At: s(48.5), For: s(1.5)}, {Kind: rolledBack, At: s(49.9), By: s(10), Writes: 500}}}},
		{"nothing logged before it is sent", without{handler: silent}, "S7", history{Holders: []holder{dead}}},
		{"no standby delay", without{rules: func(r *verdict.Rules) { r.StandbyDelay = 0 }}, "S6", history{Replicas: 2, Holders: []holder{dead}, Faults: []fault{
			{Kind: killed, Who: replicas, N: 2, At: s(0.1), For: s(10)}, {Kind: logFull, Who: replicas, N: 1, At: s(30), For: s(70)}}}},
		{"nothing is removed", without{rules: func(r *verdict.Rules) { r.Mode = verdict.Off }}, "S6", history{Holders: []holder{dead}}},
		{"another lock goes as well", without{request: deletes("b")}, "S4", history{Holders: []holder{dead, fresh}}},
		{"a lock without a deadline goes as well", without{request: deletes("u")}, "S8",
			history{Holders: []holder{dead, {Name: "u", Start: s(20), TTL: s(30), Retry: s(20), Deadline: "none"}}}},
		{"a removal writes", without{request: writes}, "S5", history{Holders: []holder{dead}}},
		{"no hold is shown", without{signals: allWell}, "S8", history{}},
		{"a silent watch stops nothing", without{signals: neverSilent}, "S8", history{Faults: []fault{{Kind: silentWatch, Who: replicas, At: s(40), For: s(20)}}}},
		{"outages count twice", without{twice: true}, "S6", history{Holders: []holder{lease("a", 20, 60)}, Faults: []fault{{Kind: slowDisk, At: s(50), For: s(20)}}}},
		{"a forecast without outages", without{allowance: true}, "S3", history{Holders: []holder{lease("a", 20, 60)}, Faults: []fault{{Kind: unreachable, At: s(50), For: s(4)}}}},
		{"a removal is counted, and not logged", without{handler: unsaid}, "S7", history{Holders: []holder{dead}}},
		{"no delay by a storm", without{calm: true}, "S3", history{Holders: storm(12)}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			c.history.Replicas, c.history.Lasts = max(1, c.history.Replicas), s(110)
			var broken []string
			for _, v := range run(t, c.history, c.out).violations {
				broken = append(broken, v.promise)
			}
			require.Contains(t, broken, c.promise, "%s", c.history)
			judged(t, c.history)
		})
	}
}

// storm returns holders that die one after another.
func storm(n int) (all []holder) {
	for i := range n {
		all = append(all, lease(fmt.Sprint("storm-", i), 20+float64(i), 30).dies(21+float64(i)))
	}
	return all
}

func allWell(verdict.Signals) verdict.Signals {
	now := time.Now()
	return verdict.Signals{ListedAt: now.Add(-time.Hour), Connected: true, LastSign: now, Probed: true}
}

func neverSilent(s verdict.Signals) verdict.Signals {
	s.Connected, s.LastSign, s.Lost = true, time.Now(), time.Time{}
	return s
}

func unpaused(s verdict.Signals) verdict.Signals {
	s.Paused = ""
	return s
}

func neverOverdue(s verdict.Signals) verdict.Signals {
	s.Overdue = false
	return s
}

// removals calls f with each transaction that deletes below the prefix, nested ones
// included, the outermost last.
func removals(req memetcd.Message, f func(*pb.TxnRequest)) {
	r, txn := req.(*pb.TxnRequest)
	if !txn {
		return
	}
	found := false
	for _, op := range r.Success {
		if nested := op.GetRequestTxn(); nested != nil {
			removals(nested, f)
		}
		_, _, below := split(op.GetRequestDeleteRange().GetKey())
		found = found || below
	}
	if found {
		f(r)
	}
}

// uncompared drops the compares of a kind, of a field or of any.
func uncompared(target pb.Compare_CompareTarget, field string) func(memetcd.Message) {
	return func(req memetcd.Message) {
		removals(req, func(r *pb.TxnRequest) {
			var kept []*pb.Compare
			for _, c := range r.Compare {
				if c.Target != target || !strings.HasSuffix(string(c.Key), "/"+field) && field != "" {
					kept = append(kept, c)
				}
			}
			r.Compare = kept
		})
	}
}

// uncomparedPauses drops the compare of the pauses, which is in the outermost transaction.
func uncomparedPauses(req memetcd.Message) {
	if r, txn := req.(*pb.TxnRequest); txn {
		r.Compare = slices.DeleteFunc(r.Compare, func(c *pb.Compare) bool { return strings.HasPrefix(string(c.Key), "/unlocker/pause/") })
	}
}

func deletes(name string) func(memetcd.Message) {
	return func(req memetcd.Message) {
		removals(req, func(r *pb.TxnRequest) {
			del := &pb.DeleteRangeRequest{Key: []byte(key(name, "")), RangeEnd: []byte(prefix + name + "0")}
			r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: del}})
		})
	}
}

func writes(req memetcd.Message) {
	removals(req, func(r *pb.TxnRequest) {
		put := &pb.PutRequest{Key: []byte("/removed"), Value: []byte("a")}
		r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	})
}

// noHistory answers that what the history check asks for is compacted.
func noHistory(req, _ memetcd.Message, err error) error {
	if r, get := req.(*pb.RangeRequest); get && r.Revision > 0 && len(r.RangeEnd) == 0 {
		return rpctypes.ErrGRPCCompacted
	}
	return err
}

// mute drops the lines with a message.
type mute struct {
	slog.Handler
	message string
}

// silent drops those before removals, unsaid those after.
func silent(h slog.Handler) slog.Handler { return mute{h, api.LogRemoving} }
func unsaid(h slog.Handler) slog.Handler { return mute{h, api.LogRemoved} }

func (m mute) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == m.message {
		return nil
	}
	return m.Handler.Handle(ctx, r)
}

// impatient is a table that pretends to have observed every clock.
type impatient struct {
	*daemon
	given map[string]bool
}

func newImpatient(d *daemon) reaper.Source { return &impatient{d, make(map[string]bool)} }

// Due implements reaper.Source.
func (i *impatient) Due() <-chan struct{} {
	due := make(chan struct{}, 1)
	time.AfterFunc(100*time.Millisecond, func() { due <- struct{}{} })
	return due
}

// Take implements reaper.Source.
func (i *impatient) Take(ctx context.Context, _ int) (due []table.View, err error) {
	page, err := i.table.Page(ctx, api.Query{Limit: 100})
	for _, v := range page.Items {
		if v.Removable() && !i.now().Before(v.AutoUnlockAt().Time().Add(s(2+drift(30)))) && !i.given[v.Name] {
			i.given[v.Name] = true
			v.Observation = verdict.Observation{Measured: true, Age: v.Observation.Age}
			due = append(due, v)
		}
	}
	return due, err
}

// Postpone implements reaper.Source.
func (i *impatient) Postpone(context.Context, table.View, time.Duration) error { return nil }

// Gone implements reaper.Source.
func (i *impatient) Gone() <-chan []table.Gone { return i.table.Gone() }
