// Package probe measures whether etcd accepts renewals.
//
// At an interval it sends a request that passes through raft as a renewal does. It records the
// outages: the times in which no renewal could succeed, according to the daemon's monotonic clock. It
// knows nothing about locks.
//
// Guaranteed: while Run runs, every outage longer than the patience is recorded. Not
// guaranteed: that a fault between the holders and etcd is detected.
package probe

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Options are the options of New.
type Options struct {
	// Etcd lists its alarms, which needs no permission.
	Etcd interface {
		AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error)
	}
	// Members is how many members of etcd have addresses of their own: each probe asks them all.
	Members int
	// Explain adds what to change to an error of etcd; nil adds nothing.
	Explain func(error) error
	// Interval is the time between probes, Timeout the maximum duration of one. A quarter of the
	// interval is how long a probe without an answer waits before it sends another request.
	Interval, Timeout time.Duration
	// Patience is how long ago the last good probe may have begun before removals stop: the shortest grace of
	// any lock.
	Patience time.Duration
	// Ended is called after an outage ends and Allowance is final; nil disables it. It may
	// block: probes continue meanwhile, and Run waits for it before it returns. Outages that
	// end meanwhile cause one more call.
	Ended func(ctx context.Context)
}

// Probe sends a request through raft at an interval, and records outages.
type Probe struct {
	Options

	mu     sync.Mutex
	status Status
	// since is when the last good probe began or, if there is none, the first probe.
	since   time.Time
	outages outages
	// revision is the newest one that an answer showed, also one that came too late to count for a probe: with
	// more than one member, the larger only delays.
	revision int64
	// asked is when the probe in progress of Run began, or zero; took is how long its last one took.
	asked time.Time
	took  time.Duration
	// lately is how long the last probes of Run took that were answered without an alarm.
	lately [3]time.Duration
	// answer is how long the last good answer took.
	answer time.Duration
	// begun is when the last probe of Begin began. news is closed when a good one was recorded; it is nil
	// while nobody waits for that.
	begun time.Time
	news  chan struct{}
	// running is the context of Run.
	running context.Context //nolint:containedctx // probes of Begin outlast their callers

	// requests tracks requests in flight, superseded ones included.
	requests sync.WaitGroup

	// over has an element if an outage has ended and Ended was not called yet.
	over chan struct{}
}

// Status is the result of the newest probes.
type Status struct {
	// OK reports whether the last probe was answered; Err is its error if it was not.
	OK  bool
	Err error
	// Up reports whether that is so and none waits for an answer for unusually long: for longer
	// than the interval, and than twice what the last one took.
	Up bool
	// Failed is when a probe last failed, Alarmed when an answer last showed an alarm; zero means
	// never.
	Failed, Alarmed time.Time
	// Good is when the last probe began that showed that holders can renew; zero means never.
	Good time.Time
	// Revision is the newest one that an answer showed; zero means none.
	Revision int64
	// Alarms are the alarms of etcd in the last answer that counted for a probe, or a later one that
	// showed some.
	Alarms []string
}

// New returns a Probe that does nothing until Run is called.
func New(o Options) (*Probe, error) {
	if o.Etcd == nil || o.Members <= 0 || o.Interval <= 0 || o.Timeout <= 0 || o.Patience <= 0 {
		return nil, errors.New("probe: Etcd, Members, Interval, Timeout and Patience are required")
	}
	return &Probe{Options: o, over: make(chan struct{}, 1)}, nil
}

// Run probes until ctx is done, and then returns nil.
func (p *Probe) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	defer p.requests.Wait()
	p.run(ctx)
	defer p.run(nil) //nolint:staticcheck // from now on Begin does nothing
	beside.Go(func() { p.notify(ctx) })
	tick := time.NewTicker(p.Interval)
	defer tick.Stop()
	for {
		p.once(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Probe) run(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = ctx
}

// notify calls Ended concurrently with the probes: a slow call would delay them, which would
// look like another outage.
func (p *Probe) notify(ctx context.Context) {
	for {
		select {
		case <-p.over:
			if p.Ended != nil {
				p.Ended(ctx)
			}
		case <-ctx.Done():
			return
		}
	}
}

// once probes. It records when the request began that was answered: one without an answer
// shows nothing.
func (p *Probe) once(ctx context.Context) {
	began := time.Now()
	p.begin(began)
	a := p.ask(ctx)
	p.record(began, a)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took, p.asked = time.Since(began), time.Time{}
	if a.err == nil && len(a.resp.Alarms) == 0 {
		copy(p.lately[:], p.lately[1:])
		p.lately[len(p.lately)-1] = p.took
	}
}

func (p *Probe) record(began time.Time, a answer) {
	if a.err != nil && p.Explain != nil {
		a.err = p.Explain(a.err)
	}
	if p.ended(began, a.start, time.Now(), alarms(a.resp), a.err) {
		select {
		case p.over <- struct{}{}:
		default:
		}
	}
}

// ended records how a probe ended, and reports whether an outage has.
func (p *Probe) ended(asked, start, end time.Time, alarms []string, err error) (outage bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if !asked.Before(p.status.Good) { // no later one was answered
			p.status.OK, p.status.Err, p.status.Failed = false, err, end
		}
		return false
	}
	if len(alarms) == 0 && p.status.Alarmed.After(asked) {
		alarms = p.status.Alarms // which another answer has shown meanwhile
	}
	return p.answered(start, end, alarms)
}

func (p *Probe) begin(start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = start
	p.first(start)
}

// first notes when the first probe began, of Run or of Begin.
func (p *Probe) first(start time.Time) {
	if p.since.IsZero() {
		p.since = start
	}
}

func alarms(resp *clientv3.AlarmResponse) []string {
	if resp == nil {
		return nil
	}
	var names []string
	for _, a := range resp.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NONE {
			names = append(names, a.Alarm.String())
		}
	}
	return names
}

// Status returns the present status. It may be called concurrently with Run.
func (p *Probe) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Up = s.OK && (p.asked.IsZero() || time.Since(p.asked) <= max(p.Interval, 2*p.took))
	return s
}

type answer struct {
	start time.Time
	resp  *clientv3.AlarmResponse
	err   error
}

const (
	// shares is how many more requests a probe may send within an interval, each after at least
	// minShare.
	shares   = 4
	minShare = 10 * time.Millisecond
	// moreFailures is how many of these may fail before the probe does.
	moreFailures = 2
	// minDistance is the minimum time between two probes of Begin.
	minDistance = 50 * time.Millisecond
)

// ask sends a request to each member and, while none is answered, another after each share of the
// interval: gRPC sends each to the next member. So neither a member that hangs nor requests that
// were lost with a leader cost a probe where others answer.
func (p *Probe) ask(ctx context.Context) answer {
	another := time.NewTicker(max(p.Interval/shares, minShare))
	defer another.Stop()
	return p.askAll(ctx, another.C)
}

// askAll sends a request to each member, and another one at each tick or, without ticks, for each that fails.
func (p *Probe) askAll(ctx context.Context, another <-chan time.Time) answer {
	deadline := time.Now().Add(p.Timeout)
	answers, enough := make(chan answer), make(chan struct{})
	defer close(enough)
	for range p.Members {
		p.request(ctx, deadline, answers, enough)
	}
	for failures := 0; ; {
		select {
		case a := <-answers:
			failures++
			if a.err == nil || failures == p.Members+moreFailures || ctx.Err() != nil || !time.Now().Before(deadline) {
				return a
			}
			if another == nil {
				p.request(ctx, deadline, answers, enough)
			}
		case <-another:
			p.request(ctx, deadline, answers, enough)
		}
	}
}

// request sends a request. It waits for the answer until the deadline even if enough others have
// come: it may show an alarm, and package etcd learns from it which member hangs.
func (p *Probe) request(ctx context.Context, deadline time.Time, answers chan<- answer, enough <-chan struct{}) {
	p.requests.Go(func() {
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		a := answer{start: time.Now()}
		a.resp, a.err = p.Etcd.AlarmList(ctx)
		p.note(time.Now(), a.resp)
		select {
		case answers <- a:
		case <-enough:
		}
	})
}

// note records the revision and the alarms of an answer, also where another one came first.
func (p *Probe) note(at time.Time, resp *clientv3.AlarmResponse) {
	if resp == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// It is that of the member that answered, which has carried out the probe, and so all writes that came before it, also
	// where it lags. etcd 3.4 does not say it: then the outage counts for every lock.
	revision := resp.Header.GetRevision()
	p.revision = max(p.revision, cmp.Or(revision, math.MaxInt64))
	p.status.Revision = max(p.status.Revision, revision)
	if alarms := alarms(resp); len(alarms) > 0 {
		p.status.Alarms, p.status.Alarmed = alarms, at
	}
}
