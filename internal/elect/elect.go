package elect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/message"
)

// minTTL is the shortest lease etcd grants with its default election timeout.
const minTTL = 2 * time.Second

// Options are what an Elector needs.
type Options struct {
	Client *clientv3.Client
	// Key names the election: its keys are those below Key, with a slash between.
	// A slash at its end makes no difference.
	Key string
	// TTL is how long a leader that vanished goes on to be one: whole seconds, two
	// at least.
	TTL time.Duration
	// Identity is what others see of us, a hostname and a process id for example.
	Identity string
	// RequestTimeout bounds each request.
	RequestTimeout time.Duration
	Logger         *slog.Logger
}

// Elector takes part in an election for as long as it runs.
type Elector struct {
	Options
	prefix string
	// reigning is the term that leads, nil for none.
	reigning atomic.Pointer[term]
	// complained is owned by Run.
	complained complaints

	mu     sync.Mutex
	since  time.Time
	holder string
}

// Status is what an Elector knows of the election.
type Status struct {
	Leader bool
	// Since is when our present leadership began, or zero.
	Since time.Time
	// Holder is the identity of the leader as last seen, a third of a TTL ago at
	// most while etcd answers, or "" where that is unknown.
	Holder string
}

// Static is an election that is decided beforehand: true for a replica that is
// alone, false for one that must never lead.
type Static bool

// Leader returns the decision.
func (s Static) Leader() bool { return bool(s) }

// New returns an Elector that leads nothing until Run.
func New(o Options) (*Elector, error) {
	prefix := strings.TrimSuffix(o.Key, "/") + "/"
	switch {
	case o.Client == nil, o.Logger == nil, prefix == "/", o.Identity == "":
		return nil, errors.New("elect: Client, Logger, Key and Identity are required")
	case o.TTL < minTTL, o.TTL%time.Second != 0:
		return nil, fmt.Errorf("elect: TTL must be whole seconds, at least %s, not %s", minTTL, o.TTL)
	case o.RequestTimeout <= 0:
		return nil, errors.New("elect: RequestTimeout must be positive")
	}
	return &Elector{Options: o, prefix: prefix, complained: complaints{}}, nil
}

// Leader tells whether we lead at this moment. It never blocks, and may be called
// from any goroutine. Ask anew before each act.
func (e *Elector) Leader() bool {
	t := e.reigning.Load()
	return t != nil && t.valid(time.Now())
}

// Status may be called from any goroutine, and does not ask etcd.
func (e *Elector) Status() Status {
	leader := e.Leader()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Leader: leader, Holder: e.holder}
	if leader {
		s.Since = e.since
	}
	return s
}

// Pauses between terms: from minBackoff, doubled up to maxBackoff, less a jitter of
// half; minBackoff again after a term that outlived its TTL.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Run takes part until ctx is done, and returns nil then; no failure of etcd ends
// it. When ctx is done Leader is false at once, and then our key is given up: so
// the leader's work must have ended before. Run is called once.
func (e *Elector) Run(ctx context.Context) error {
	var backoff time.Duration
	for ctx.Err() == nil {
		began := time.Now()
		err := e.term(ctx)
		backoff = grown(backoff, time.Since(began), e.TTL)
		if ctx.Err() == nil {
			e.complain(ctx, err)
			_ = pause(ctx, backoff/2+rand.N(backoff/2))
		}
	}
	return nil
}

// grown returns the backoff that follows on the one before and a term that lived
// so long.
func grown(backoff, lived, ttl time.Duration) time.Duration {
	if lived > ttl {
		return minBackoff
	}
	return min(max(2*backoff, minBackoff), maxBackoff)
}

// saw notes who leads.
func (e *Elector) saw(holder string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holder = holder
}

// reign makes t the leading term, where it is not yet.
func (e *Elector) reign(t *term) {
	if e.reigning.Load() == t {
		return
	}
	e.mu.Lock()
	e.since = time.Now()
	e.mu.Unlock()
	e.reigning.Store(t)
	e.Logger.Info(message.Leading, "key", t.key)
}

// abdicate ends the leadership of t, if it had one.
func (e *Elector) abdicate(t *term, why error) {
	e.saw("")
	if e.reigning.CompareAndSwap(t, nil) {
		e.Logger.Info(message.NotLeading, "key", t.key, "reason", why)
	}
}

// pause waits for d, or for ctx, whose error it returns then.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
