package scan

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ProbeOptions are what a Probe needs.
type ProbeOptions struct {
	Client *clientv3.Client
	// Interval is the time between probes, Timeout how long one may take.
	Interval, Timeout time.Duration
	// Patience is how long owners do without etcd before that counts: the
	// least grace of any lock. It must be at least twice the Interval.
	Patience time.Duration
}

// Probe asks etcd, again and again, whether owners could renew their locks. The
// request passes through raft as a renewal does; it needs no permission. What
// it measures by is our monotonic clock.
type Probe struct {
	ProbeOptions

	mu     sync.Mutex
	status ProbeStatus
	// good is when the last probe began after which owners could renew, since
	// the same or, before that, when the first probe began.
	good, since time.Time
	outages     outages
}

// ProbeStatus is what the newest probes said.
type ProbeStatus struct {
	// OK: the last probe that ended was answered. Err is why not.
	OK  bool
	Err error
	// Good is when the last probe began that showed that owners can renew; zero
	// for never.
	Good time.Time
	// Alarms are those that etcd raised.
	Alarms []string
}

// NewProbe returns a Probe that does nothing until Run.
func NewProbe(o ProbeOptions) (*Probe, error) {
	if o.Client == nil || o.Interval <= 0 || o.Timeout <= 0 || o.Patience < 2*o.Interval {
		return nil, errors.New("probe: Client, Interval, Timeout and Patience are required, Patience twice the Interval")
	}
	return &Probe{ProbeOptions: o}, nil
}

// Run probes until ctx is done, and returns nil then.
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
	resp, err := p.Client.AlarmList(ctx)
	p.Note(start, time.Now(), alarms(resp), err)
}

// Note takes in what became of a probe; Run calls it by itself. Alarms are those
// that etcd raised, err is why there was no answer.
func (p *Probe) Note(start, end time.Time, alarms []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = start
	}
	if err != nil {
		p.status.OK, p.status.Err = false, err
		return
	}
	p.answered(start, end, alarms)
}

// answered takes a probe's answer. Owners can renew when there is no alarm: at
// NOSPACE etcd refuses puts, at CORRUPT everything.
func (p *Probe) answered(start, end time.Time, alarms []string) {
	alarmed := len(p.status.Alarms) > 0
	p.status.OK, p.status.Err, p.status.Alarms = true, nil, alarms
	if len(alarms) > 0 {
		return
	}
	if gap := end.Sub(p.since); gap > p.Patience || alarmed {
		// The probe that ended the last outage lies in both gaps where its answer
		// was slow: that time counts once.
		p.outages.add(end, min(gap, end.Sub(p.outages.end())))
	}
	p.good, p.since, p.status.Good = start, start, start
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

// Status may be called concurrently with Run.
func (p *Probe) Status() ProbeStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Overdue tells whether owners may be unable to renew at this moment: no probe
// that began within the patience has shown that they can.
func (p *Probe) Overdue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.good.IsZero() || time.Since(p.good) > p.Patience
}

// Credit returns for how long owners could not renew a lock whose last write
// was seen at the time given.
func (p *Probe) Credit(seen time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outages.since(seen)
}

// outages are times in which etcd could not take a renewal, in their order.
type outages []outage

type outage struct {
	end    time.Time
	length time.Duration
	// before is the sum of the lengths of those before.
	before time.Duration
}

// maxOutages bounds the memory; the two oldest become one, which only delays.
const maxOutages = 1_000

func (o *outages) add(end time.Time, length time.Duration) {
	next := outage{end: end, length: length}
	if n := len(*o); n > 0 {
		next.before = (*o)[n-1].before + (*o)[n-1].length
	}
	*o = append(*o, next)
	if len(*o) > maxOutages {
		(*o)[1].length += (*o)[0].length
		(*o)[1].before = (*o)[0].before
		*o = (*o)[1:]
	}
}

// end returns when the newest one ended; zero for never.
func (o outages) end() time.Time {
	if len(o) == 0 {
		return time.Time{}
	}
	return o[len(o)-1].end
}

// since sums up what lies behind a time; of an outage in which it lies, what was
// left.
func (o outages) since(seen time.Time) time.Duration {
	n := len(o)
	if n == 0 || !o[n-1].end.After(seen) {
		return 0
	}
	first := 0
	for first < n && !o[first].end.After(seen) {
		first++
	}
	all := o[n-1].before + o[n-1].length
	return min(o[first].length, o[first].end.Sub(seen)) + all - o[first].before - o[first].length
}
