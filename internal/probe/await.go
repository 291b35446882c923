package probe

import (
	"context"
	"time"
)

// The lead is how long before a lock is due the probe may begin that its removal needs: long enough for the
// answer to be there when it is due, and too short for a renewal.
const (
	minLead = 10 * time.Millisecond
	maxLead = 100 * time.Millisecond
)

// Lead returns what the last good probe took, within the limits.
func (p *Probe) Lead() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(p.answer, minLead), maxLead)
}

// Good is that of Status.
func (p *Probe) Good() time.Time { return p.Status().Good }

// Begin begins a probe next to those of Run, at most twenty times a second, and whether or not earlier ones
// were answered. Its outcome is recorded like that of any other. Without Run it does nothing.
func (p *Probe) Begin() { p.another() }

// another is Begin. It returns after how long the next probe may begin.
func (p *Probe) another() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, ctx := time.Now(), p.running
	if ctx == nil {
		return minDistance
	}
	if early := minDistance - now.Sub(p.begun); early > 0 {
		return early
	}
	p.begun = now
	p.first(now)
	p.requests.Go(func() { p.record(now, p.askAll(ctx, nil)) })
	return minDistance
}

// Await waits until a good probe is recorded that began at a time or later, and begins probes meanwhile. It
// returns the error of ctx if there is none.
func (p *Probe) Await(ctx context.Context, since time.Time) error {
	for {
		good, news := p.next()
		if !good.Before(since) {
			return nil
		}
		select {
		case <-news:
		case <-time.After(p.another()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns when the last good probe began, and a channel that is closed with the next answer.
func (p *Probe) next() (good time.Time, news <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{})
	}
	return p.status.Good, p.news
}
