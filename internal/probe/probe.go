package probe

import (
	"context"
	"errors"
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
	// Interval is the time between probes, Timeout the maximum duration of one.
	Interval, Timeout time.Duration
	// Patience is the maximum time without etcd that does not count as an outage: the
	// shortest grace of any lock.
	Patience time.Duration
}

// Probe sends a request through raft at an interval, and records outages.
type Probe struct {
	Options

	mu     sync.Mutex
	status Status
	// since is when the last good probe began or, if there is none, the first probe.
	since   time.Time
	outages outages
}

// Status is the result of the newest probes.
type Status struct {
	// OK reports whether the last probe was answered; Err is its error if it was not.
	OK  bool
	Err error
	// Good is when the last probe began that showed that holders can renew; zero means
	// never.
	Good time.Time
	// Alarms are the alarms of etcd in the last answer.
	Alarms []string
}

// New returns a Probe that does nothing until Run is called.
func New(o Options) (*Probe, error) {
	if o.Etcd == nil || o.Interval <= 0 || o.Timeout <= 0 || o.Patience <= 0 {
		return nil, errors.New("probe: Etcd, Interval, Timeout and Patience are required")
	}
	return &Probe{Options: o}, nil
}

// Run probes until ctx is done, and then returns nil.
func (p *Probe) Run(ctx context.Context) error {
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

func (p *Probe) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	start := time.Now()
	p.begin(start)
	resp, err := p.Etcd.AlarmList(ctx)
	end := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.status.OK, p.status.Err = false, err
		return
	}
	p.answered(start, end, alarms(resp))
}

// begin records when the first probe began.
func (p *Probe) begin(start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = start
	}
}

// answered records the answer of a probe. Holders can renew only if there is no alarm: with
// NOSPACE etcd refuses puts, with CORRUPT all requests.
func (p *Probe) answered(start, end time.Time, alarms []string) {
	alarmed := len(p.status.Alarms) > 0
	p.status.OK, p.status.Err, p.status.Alarms = true, nil, alarms
	if len(alarms) > 0 {
		return
	}
	if gap := end.Sub(p.since); gap > p.Patience || alarmed {
		// If the answer of the probe that ended the last outage was slow, that probe is in
		// both gaps. Its time counts once.
		p.outages.add(end, min(gap, end.Sub(p.outages.end())))
	}
	p.since, p.status.Good = start, start
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
	return p.status
}

// Overdue reports whether holders may be unable to renew at present: no probe that began within
// the last Patience has shown that they can.
func (p *Probe) Overdue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Good.IsZero() || time.Since(p.status.Good) > p.Patience
}

// Allowance returns for how long outages prevented a holder from renewing a lock whose last
// write was observed at the time seen.
func (p *Probe) Allowance(seen time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outages.since(seen)
}
