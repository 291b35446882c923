package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// kind is what goes wrong.
type kind string

const (
	unreachable kind = "unreachable"
	refused     kind = "refused"
	unanswered  kind = "unanswered"
	noLeader    kind = "no leader"
	slowDisk    kind = "slow disk" // what is written waits, what is read does not
	lag         kind = "lag"
	latency     kind = "latency"
	lateAnswers kind = "late answers"
	down        kind = "etcd down" // killed, and restarted after For

	// reads of the lock named slow take longer than a request may
	unreadable kind = "unreadable"

	noSpace   kind = "NOSPACE"
	corrupt   kind = "CORRUPT"
	broken    kind = "connections reset"
	tokens    kind = "tokens expired"
	compacted kind = "compacted"
	logFull   kind = "log full"
	killed    kind = "killed" // a replica, restarted after For
	paused    kind = "paused" // a person pauses all removals

	silentWatch kind = "watch silent"    // all else is answered
	lateWatch   kind = "watch late"      // what it shows comes By later
	stalled     kind = "request stalled" // for the judges: what a moment delayed

	// what a client does out of turn
	renewed     kind = "renewed"
	released    kind = "released"
	retaken     kind = "released and taken" // by another holder
	overwritten kind = "overwritten"        // by another holder, which does not look
	noted       kind = "noted"              // no sign of life

	rolledBack kind = "rolled back in place"
	newCluster kind = "restored as a new cluster"
	bumped     kind = "restored with a bumped revision"
)

// The lock named slow is unreadable, that named guarded is one whose keys the role of the daemons may not delete.
const (
	slow    = "slow"
	guarded = "guarded"
)

// who a fault of the network lies between and etcd.
type who string

const (
	everyone who = "everyone"
	replicas who = "replicas" // all, or number N-1
	hosts    who = "hosts"
)

// fault is one thing that goes wrong, from At on for a while.
type fault struct {
	Kind    kind
	Who     who
	N       int
	At, For time.Duration
	// By is the lag, the latency, or the age of the backup; Writes are those of other
	// programs right after a restore.
	By     time.Duration
	Writes int
	// Of is the lock whose removal is paused, "" for all; the record of broken cannot be read.
	Of string
	// On is the request of a daemon, since At, that it happens right before. That waits for Waits, and until all others
	// have Seen the fault. After is when it was carried out, before its answer is read. What clients do Again happens
	// once to each lock.
	On           moment
	Waits        time.Duration
	Seen         bool
	After, Again bool
}

const broke = "?"

func (f fault) end() time.Duration { return f.At + f.For }

// blocks reports whether no renewal comes through.
func (f fault) blocks() bool {
	switch f.Kind {
	case unreachable, refused, unanswered, noLeader, slowDisk, down:
		return true
	}
	return false
}

// stands reports whether a watch shows nothing while its connection stands.
func (f fault) stands() bool {
	return f.Kind == unreachable || f.Kind == unanswered || f.Kind == silentWatch
}

func (f fault) restores() bool {
	return f.Kind == rolledBack || f.Kind == newCluster || f.Kind == bumped
}

// alone reports whether it delays nothing but the removal of a lock.
func (f fault) alone() bool  { return f.Kind == stalled && (f.On == atRemoval || f.On == atRead) }
func (f fault) alarms() bool { return f.Kind == noSpace || f.Kind == corrupt }

// meets reports whether a fault lies between etcd and a replica or a host.
func (f fault) meets(who who, n int) bool {
	return f.Who == everyone || f.Who == "" || f.Who == who && (f.N == 0 || f.N == n+1)
}

// network is the fault as the etcd in memory knows it.
func (f fault) network() memetcd.Faults {
	switch f.Kind {
	case unreachable:
		return memetcd.Unreachable()
	case refused, down:
		return memetcd.Faults{Refuse: true}
	case unanswered:
		return memetcd.Faults{HoldAnswers: true}
	case noLeader:
		return memetcd.Faults{NoLeader: true}
	case lag:
		return memetcd.Faults{Lag: f.By}
	case latency:
		return memetcd.Faults{Request: f.By}
	case lateAnswers:
		return memetcd.Faults{Answer: f.By}
	}
	return memetcd.Faults{}
}

// proposes reports whether a request has to be written to etcd's log.
func proposes(req memetcd.Message) bool {
	switch r := req.(type) {
	case *pb.TxnRequest:
		for _, op := range append(r.Success, r.Failure...) {
			if op.GetRequestRange() == nil {
				return true
			}
		}
		return false
	case *pb.PutRequest, *pb.DeleteRangeRequest, *pb.AlarmRequest, *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest:
		return true
	}
	return false
}

// reads reports whether a request reads the lock named slow.
func reads(req memetcd.Message) bool {
	r, txn := req.(*pb.TxnRequest)
	return txn && slices.ContainsFunc(r.Success, func(op *pb.RequestOp) bool {
		return strings.HasPrefix(string(op.GetRequestRange().GetKey()), key(slow, ""))
	})
}

// begin and stop are called by the timeline, while all else waits.
func (w *world) begin(f fault) {
	switch f.Kind {
	case noSpace, corrupt:
		w.etcd.chore(w.alarm(f.Kind, true))
	case broken:
		w.etcd.reset()
	case tokens:
		w.etcd.expireTokens()
	case compacted:
		w.etcd.chore(compact)
	case down:
		w.etcd.kill()
	case slowDisk:
		w.etcd.stall(true)
	case killed:
		w.eachReplica(f, func(n int) {
			if w.daemons[n].ended == 0 {
				w.daemons[n].kill()
			}
		})
	case paused:
		w.etcd.chore(w.pause(f.Of, true))
	case rolledBack, newCluster, bumped:
		w.restore(f)
	}
	w.active = append(w.active, f)
	w.connectivity()
}

func (w *world) stop(f fault) {
	if i := slices.Index(w.active, f); i >= 0 {
		w.active = slices.Delete(w.active, i, i+1)
	}
	switch f.Kind {
	case paused:
		w.etcd.chore(w.pause(f.Of, w.pausing(f.Of)))
	case noSpace, corrupt:
		w.etcd.chore(w.alarm(f.Kind, w.still(f.Kind, 0)))
		w.pauses(w.etcd.chore) // a person tries again what etcd refused
	case slowDisk:
		w.etcd.stall(w.still(slowDisk, 0))
		w.retry()
	case down:
		if !w.still(down, 0) {
			w.etcd.restart()
		}
		w.retry()
	case killed:
		w.eachReplica(f, func(n int) {
			if !w.still(killed, n) {
				w.start(n)
			}
		})
	}
	w.connectivity()
}

// retry lets a person do again what etcd may not have answered.
func (w *world) retry() {
	for _, k := range []kind{noSpace, corrupt} {
		if slices.ContainsFunc(w.drawn, func(f fault) bool { return f.Kind == k }) {
			w.etcd.chore(w.alarm(k, w.still(k, 0)))
		}
	}
	w.pauses(w.etcd.chore)
}

// pausing reports whether a user pauses the removal of a lock, or of all.
func (w *world) pausing(of string) bool {
	return slices.ContainsFunc(w.active, func(f fault) bool { return f.Kind == paused && f.Of == of })
}

// pauses writes or deletes all pauses that there may be.
func (w *world) pauses(do func(chore)) {
	for _, f := range w.drawn {
		if f.Kind == paused {
			do(w.pause(f.Of, w.pausing(f.Of)))
		}
	}
}

// pause writes or deletes the pause of a lock, or of all, which etcd may refuse.
func (w *world) pause(of string, on bool) chore {
	key := w.config.PauseKeys() + pause.Key(of)
	value, err := pause.Value(api.Pause{By: "ada", Reason: "a test", Until: w.epoch.Add(time.Hour), Match: of})
	check(err)
	if of == broke {
		value = "{"
	}
	return func(ctx context.Context, admin *clientv3.Client) {
		if on {
			_, _ = admin.Put(ctx, key, value)
		} else {
			_, _ = admin.Delete(ctx, key)
		}
	}
}

// alarm raises or disarms an alarm.
func (w *world) alarm(k kind, on bool) chore {
	r := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: 1, Alarm: pb.AlarmType(pb.AlarmType_value[string(k)])}
	if on {
		r.Action = pb.AlarmRequest_ACTIVATE
	}
	return func(ctx context.Context, admin *clientv3.Client) {
		_, _ = pb.NewMaintenanceClient(admin.ActiveConnection()).Alarm(ctx, r)
	}
}

func compact(ctx context.Context, admin *clientv3.Client) {
	if head, err := admin.Get(ctx, "head"); err == nil {
		_, _ = admin.Compact(ctx, head.Header.Revision)
	}
}

// still reports whether another fault of the kind meets a replica.
func (w *world) still(k kind, n int) bool {
	return slices.ContainsFunc(w.active, func(f fault) bool { return f.Kind == k && f.meets(replicas, n) })
}

func (w *world) eachReplica(f fault, do func(n int)) {
	for n := range w.Replicas {
		if f.meets(replicas, n) {
			do(n)
		}
	}
}

func (w *world) restore(f fault) {
	s := w.snapshots[f.At]
	how := memetcd.Restored{NewCluster: f.Kind == newCluster}
	if f.Kind == bumped {
		how.Bump = 1_000_000
	}
	// The cause of an alarm is in no backup, and a person looks after a pause.
	full, bad := w.alarm(noSpace, w.still(noSpace, 0)), w.alarm(corrupt, w.still(corrupt, 0))
	var pauses []chore
	w.pauses(func(c chore) { pauses = append(pauses, c) })
	w.etcd.restore(s.data, how, func() { w.judge.restored(s.truth, f.Kind) }, func(ctx context.Context, admin *clientv3.Client) {
		full(ctx, admin)
		bad(ctx, admin)
		for _, pause := range pauses {
			pause(ctx, admin)
		}
		for range f.Writes {
			_, _ = admin.Put(ctx, "/elsewhere", "x")
		}
	})
}

// connectivity gives every client the faults of its network.
func (w *world) connectivity() {
	for n, l := range w.hosts {
		l.Set(w.networkOf(hosts, n))
	}
	for _, d := range w.daemons {
		if d.ended == 0 {
			d.link.Set(w.networkOf(replicas, d.replica))
		}
	}
}

// disk delays what is written.
func (w *world) disk(req memetcd.Message) (faults memetcd.Faults) {
	now := w.elapsed()
	resumes, all := now, slices.Clone(w.judge.faults())
	slices.SortFunc(all, func(a, b fault) int { return int(a.At - b.At) })
	for _, f := range all {
		switch {
		case f.Kind == slowDisk && proposes(req) && f.At <= resumes: // one after the other
			resumes = max(resumes, f.end())
			faults.Request = max(faults.Request, resumes-now)
		case f.Kind == unreadable && reads(req) && f.At <= now && now < f.end():
			faults.Request = 2 * w.config.Etcd.RequestTimeout
		}
	}
	return faults
}

func (w *world) networkOf(who who, n int) (sum memetcd.Faults) {
	for _, f := range w.active {
		if !f.meets(who, n) {
			continue
		}
		one := f.network()
		sum.Refuse = sum.Refuse || one.Refuse
		sum.HoldRequests = sum.HoldRequests || one.HoldRequests
		sum.HoldAnswers = sum.HoldAnswers || one.HoldAnswers
		sum.NoLeader = sum.NoLeader || one.NoLeader
		sum.Lag, sum.Request, sum.Answer = sum.Lag+one.Lag, sum.Request+one.Request, sum.Answer+one.Answer
	}
	return sum
}
