package probe

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// answer is what became of a request.
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
)

// ask sends a request to each member and, while none is answered, another after each share of the
// interval: gRPC sends each to the next member. So neither a member that hangs nor requests that
// were lost with a leader cost a probe where others answer.
func (p *Probe) ask(ctx context.Context) answer {
	deadline := time.Now().Add(p.Timeout)
	answers, enough := make(chan answer), make(chan struct{})
	defer close(enough)
	another := time.NewTicker(max(p.Interval/shares, minShare))
	defer another.Stop()
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
		case <-another.C:
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
		p.note(time.Now(), alarms(a.resp))
		select {
		case answers <- a:
		case <-enough:
		}
	})
}

// note records the alarms of an answer, also where another one without them came first.
func (p *Probe) note(at time.Time, alarms []string) {
	if len(alarms) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Alarms, p.status.Alarmed = alarms, at
}
