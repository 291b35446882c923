package reaper

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/scan/table"
)

// huntReplica is a daemon: the real table, probe, rules, holds and transactions.
type huntReplica struct {
	w     *huntWorld
	id    int
	clock huntClock
	table table.Steps
	probe *scan.Probe
	*worker
	leads bool
	dead  bool

	// The scanner, as it behaves.
	cut, paused   bool
	delay         time.Duration
	pos, revision int64
	cluster       int
	watching      bool
	live          bool
	connected     bool
	session       int
	listed, sign  time.Time
	history       int
	probing       bool

	// sights is what the replica truly saw live: by lock, the revision of the
	// write, and the offset then.
	sights map[string]huntSight
	read   map[string]lock.Lock
	tries  map[string]int
	race   func()
	answer huntAnswer
	pollN  int
	busy   bool
}

type huntSight struct {
	rev, token int64
	at         time.Time
	offset     time.Duration
}

type huntAnswer int

const (
	answerPlain huntAnswer = iota
	answerLost             // it happened, but there is no answer
	answerLate             // there is no answer, and it happens later
)

type huntSource struct {
	Source // nil: nothing else is called
	r      *huntReplica
}

// Postpone takes the jitter out of the backoff: a seed must give the same again.
func (s huntSource) Postpone(_ context.Context, name string, token int64, d time.Duration) error {
	if d > 0 && s.r.busy {
		s.r.tries[name]++
		d = min(leastBackoff<<min(s.r.tries[name]-1, 10), mostBackoff)
	}
	s.r.table.Postpone(name, token, d)
	return nil
}

type huntBlind struct{}

func (huntBlind) Observe(float64) {}

func (w *huntWorld) newReplica(id int, script huntReplicaScript) *huntReplica {
	r := &huntReplica{w: w, id: id, delay: script.Delay, sights: map[string]huntSight{}, read: map[string]lock.Lock{}, tries: map[string]int{}}
	r.clock = huntClock{w: w, off: script.Offset, drift: script.Drift}
	rules := Rules{Mode: Enforce, Grace: huntGrace, Tolerance: huntTolerance, Settle: huntSettle, StandbyDelay: huntStandby}
	var err error
	r.table, err = table.NewSteps(table.Options{Due: rules.DueIn, Lead: Lead, Window: 15 * time.Second, Tolerance: huntTolerance,
		OrphanGrace: time.Minute, Now: r.clock.now, HoldDuration: huntBlind{}})
	if err != nil {
		panic(err)
	}
	r.probe, err = scan.NewProbe(scan.ProbeOptions{Client: &clientv3.Client{}, Interval: time.Second, Timeout: 5 * time.Second, Patience: rules.LeastGrace()})
	if err != nil {
		panic(err)
	}
	reaper, err := New(Options{
		KV: &huntKV{r: r}, Layout: huntLayout, Source: huntSource{r: r}, Rules: rules,
		Holds:   HoldRules{Settle: huntSettle, Freshness: huntFreshness, Storm: StormRules{MinLocks: script.Storm, Fraction: 0.5, Hold: 20 * time.Second}},
		Signals: r.signals, Leader: func() bool { return r.leads }, Credit: r.probe.Credit,
		BatchSize: 16, Concurrency: 1, RequestTimeout: 5 * time.Second, Retention: time.Hour,
		Delay: huntBlind{}, Now: r.clock.now, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	r.worker = &worker{Reaper: reaper, requests: context.Background()}
	r.in(0, r.connect)
	r.in(0, r.ask)
	return r
}

const (
	huntGrace     = 2 * time.Second
	huntTolerance = 2 * time.Second
	huntSettle    = 15 * time.Second
	huntFreshness = 10 * time.Second
	huntStandby   = 5 * time.Second
)

func (r *huntReplica) in(d time.Duration, do func()) {
	r.w.in(d, func() {
		if !r.dead {
			do()
		}
	})
}

func (r *huntReplica) signals() Signals {
	s := r.probe.Status()
	return Signals{ListedAt: r.listed, History: r.history, Connected: r.connected, Sign: r.sign,
		Probed: s.OK, Alarms: s.Alarms, Overdue: r.probe.Overdue()}
}

func (r *huntReplica) reaches() bool { return r.w.up && !r.cut }

// connect begins a session: a listing, and then the watch.
func (r *huntReplica) connect() {
	r.session++
	session := r.session
	again := func() {
		r.in(500*time.Millisecond, func() {
			if session == r.session {
				r.connect()
			}
		})
	}
	if !r.reaches() {
		again()
		return
	}
	s := &r.w.store
	if r.revision > s.rev || r.cluster != 0 && r.cluster != s.cluster {
		r.w.say("replica %d sees another history", r.id)
		r.gate.open()
		r.table.Forget()
		r.revision, r.cluster, r.listed = 0, 0, time.Time{}
		r.history++
		clear(r.sights)
		again()
		return
	}
	rev, locks := s.rev, s.list()
	cluster := s.cluster
	r.table.Begin(rev, false)
	r.in(50*time.Millisecond, func() {
		if session != r.session {
			return
		}
		if !r.reaches() || cluster != s.cluster {
			again()
			return
		}
		r.gate.open()
		r.table.List(locks)
		r.table.End()
		if r.listed.IsZero() {
			r.listed = time.Now()
		}
		r.pos, r.revision, r.cluster = rev, max(rev, r.revision), cluster
		r.watching, r.live = true, false
		r.w.say("replica %d listed %d locks at revision %d", r.id, len(locks), rev)
		r.in(r.delay, r.deliver)
		r.poll()
	})
}

// deliver brings what the watch has for the replica by now.
func (r *huntReplica) deliver() {
	if !r.watching || r.paused || !r.reaches() {
		return
	}
	var events []table.Event
	log := r.w.store.log
	first, _ := slices.BinarySearchFunc(log, r.pos+1, func(w huntWrite, rev int64) int { return int(w.rev - rev) })
	for _, w := range log[first:] {
		events = append(events, w.events...)
		r.pos = w.rev
	}
	if len(events) == 0 {
		return
	}
	r.gate.open()
	r.table.Apply(events, r.live)
	r.see(events)
	r.revision = max(r.revision, r.pos)
	r.connected, r.sign = true, time.Now()
	r.poll()
}

// see notes what the replica can know of an owner's clock.
func (r *huntReplica) see(events []table.Event) {
	if !r.live {
		return
	}
	for _, ev := range events {
		name := string(ev.Name)
		if ev.Deleted {
			delete(r.sights, name)
			continue
		}
		if f := ev.KV.Field; f == lock.FieldLockedAt || f == lock.FieldAliveAt {
			t, _ := lock.ParseTimestamp(ev.KV.Value)
			s := huntSight{rev: ev.KV.Mod, at: time.Now(), offset: t.Time().Sub(r.clock.now())}
			if s.token = r.sights[name].token; f == lock.FieldLockedAt {
				s.token = ev.KV.Create
			}
			r.sights[name] = s
		}
	}
}

// sign of life: a progress notice, which shows that the watch has caught up.
func (r *huntReplica) progress() {
	if r.watching && !r.paused && r.reaches() && r.pos == r.w.store.rev {
		r.gate.open()
		r.live, r.connected, r.sign = true, true, time.Now()
	}
	if r.watching && time.Since(r.sign) > huntFreshness && r.connected {
		r.w.say("replica %d gives its watch up", r.id)
		r.drop()
	}
}

// drop ends the watch, and begins anew.
func (r *huntReplica) drop() {
	r.gate.open()
	r.watching, r.connected, r.live = false, false, false
	r.session++
	session := r.session
	r.in(200*time.Millisecond, func() {
		if session == r.session {
			r.connect()
		}
	})
}

// ask is the probe, every second.
func (r *huntReplica) ask() {
	r.in(time.Second, r.ask)
	r.progress()
	if !r.probing {
		r.probing = true
		start := time.Now()
		r.in(3*time.Millisecond, func() { r.asked(start) })
	}
	r.poll()
}

func (r *huntReplica) asked(start time.Time) {
	now := time.Now()
	switch {
	case r.reaches():
		var alarms []string
		if !r.w.space {
			alarms = []string{"NOSPACE"}
		}
		r.gate.open()
		r.probe.Note(start, now, alarms, nil)
		r.gate.open()
	case now.Sub(start) >= 5*time.Second || r.w.Refuse:
		r.gate.open()
		r.probe.Note(start, now, nil, errHunt)
		r.gate.open()
	default:
		r.in(97*time.Millisecond, func() { r.asked(start) })
		return
	}
	r.probing = false
}

// poll does what the reaper's worker would do now, and comes again when
// something is due.
func (r *huntReplica) poll() {
	wait, gone := r.table.Pass()
	for _, g := range gone {
		r.finish(r.tally.gone(Gone(g)))
	}
	open := r.gate.press(Pressure(r.table.Pressure()))
	if open && r.w.violated == "" {
		if r.work() {
			wait, _ = r.table.Pass()
		}
	}
	if p := r.table.Pressure(); p.Backlog > 0 && wait > 200*time.Millisecond {
		wait = 200 * time.Millisecond
	}
	if wait < time.Second {
		r.pollN++
		n := r.pollN
		r.in(max(wait, time.Millisecond), func() {
			if n == r.pollN {
				r.poll()
			}
		})
	}
}

func (r *huntReplica) work() (some bool) {
	batch := r.table.Take(r.BatchSize)
	if len(batch.Locks) == 0 {
		return false
	}
	candidates := make([]Candidate, len(batch.Locks))
	for i, t := range batch.Locks {
		candidates[i] = Candidate{Lock: t.Lock, Sight: t.Sight, At: time.Now(), Since: t.Since, Attempts: t.Attempts}
	}
	prepared, _ := r.readAll(r.sift(candidates, r.gate.press(Pressure(batch.Pressure))))
	r.wait(prepared, time.Now())
	return true
}

// wait is worker.handle without its sleep.
func (r *huntReplica) wait(batch []prepared, start time.Time) {
	if len(batch) == 0 {
		return
	}
	if !r.gate.open() {
		for i := range batch {
			r.postpone(&batch[i].candidate, 0)
		}
		return
	}
	r.busy = true
	due, soon, wait := r.judge(batch, Lead-time.Since(start))
	_ = r.send(due)
	r.busy = false
	if len(soon) > 0 {
		r.in(wait, func() { r.wait(soon, start) })
	}
}

func (r *huntReplica) readRecords(t *huntTxn) (*clientv3.TxnResponse, error) {
	if !r.reaches() {
		return nil, errHunt
	}
	resp := r.w.store.get(t.ops)
	for _, op := range t.ops {
		name := string(op.KeyBytes())[len(huntLayout.Prefix()):]
		name = name[:len(name)-1]
		r.read[name] = r.w.store.collect(name)
	}
	return resp, nil
}

// commit brings a removal to etcd.
func (r *huntReplica) commit(t *huntTxn) (*clientv3.TxnResponse, error) {
	if race := r.race; race != nil {
		r.race = nil
		r.w.say("a race with replica %d", r.id)
		race()
	}
	judged := maps.Clone(r.read)
	do := func() *clientv3.TxnResponse {
		resp := t.run(&r.w.store, func(name string) { r.w.judge(r, name, judged[name]) })
		r.w.wrote()
		return resp
	}
	answer := r.answer
	r.answer = answerPlain
	switch {
	case !r.reaches() && r.cut:
		return nil, errHunt
	case !r.reaches():
		r.w.lingers = append(r.w.lingers, func() { do() })
		return nil, errHunt
	case answer == answerLost:
		do()
		return nil, errHunt
	case answer == answerLate:
		r.w.in(2*time.Second, func() {
			if r.w.up {
				do()
			} else {
				r.w.lingers = append(r.w.lingers, func() { do() })
			}
		})
		return nil, errHunt
	}
	return do(), nil
}
