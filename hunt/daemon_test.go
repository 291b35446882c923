//go:build hunt

package hunt

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/message"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

const (
	grace     = time.Second
	tolerance = time.Second
	standby   = time.Second
)

// slot runs one daemon after another, all with the same proxies.
type slot struct {
	world *world
	group *group
	// past are the daemons that have ended, present the one that runs.
	past    []*daemon
	present *daemon
}

type daemon struct {
	app    *app.App
	log    *journal
	cancel context.CancelFunc
	done   chan error
	// removed and ambiguous are the counters in the last snapshot.
	removed, ambiguous uint64
}

func (s *slot) config() config.Config {
	c := config.Default()
	c.Etcd.Endpoints = s.group.endpoints()
	c.Etcd.DialTimeout, c.Etcd.RequestTimeout = time.Second, time.Second
	c.Etcd.Username, c.Etcd.Password = s.world.cluster.user, config.NewSecret(s.world.cluster.user)
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", ""
	c.Reaper.ClockTolerance, c.Reaper.Grace, c.Reaper.StandbyDelay = tolerance, grace, standby
	c.Reaper.Settle, c.Reaper.Freshness = time.Second, 2*time.Second
	c.Reaper.ProbeInterval = 200 * time.Millisecond
	c.Reaper.OrphanGrace = time.Second
	c.Reaper.Storm.MinLocks = 0
	c.Election.TTL = 2 * time.Second
	return c
}

func (s *slot) start() {
	d := &daemon{log: &journal{first: map[verdictOn]time.Time{}}, done: make(chan error, 1)}
	a, err := app.New(s.config(), slog.New(d.log))
	if err != nil {
		s.world.violate("a daemon does not start: %v", err)
		return
	}
	d.app = a
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go func() { d.done <- a.Run(ctx) }()
	s.present = d
}

// stop ends the daemon and waits for it.
func (s *slot) stop() {
	d := s.present
	if d == nil {
		return
	}
	d.snapshot(s.world)
	logged := d.log.removals()
	d.cancel()
	start := time.Now()
	if err := <-d.done; err != nil {
		s.world.violate("a daemon ended with an error after %s: %v", time.Since(start), err)
	}
	d.log.ended = time.Now()
	if d.removed > uint64(logged) {
		s.world.violate("S7: a daemon counted %d removals and logged %d", d.removed, logged)
	}
	s.past, s.present = append(s.past, d), nil
}

func (d *daemon) snapshot(w *world) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	snap, err := d.app.Snapshot(ctx)
	if err != nil {
		w.violate("no snapshot of a daemon: %v", err)
		return
	}
	d.removed, d.ambiguous = snap.Reaper.Removed[verdict.Expiry], snap.Reaper.Failures[lockstore.ReasonAmbiguous]
}

// journal collects what a daemon logs about removals and holds. It is a slog.Handler.
type journal struct {
	mu       sync.Mutex
	announce []announcement
	outcome  []outcome
	first    map[verdictOn]time.Time // the time of the first announcement
	holds    []holdCount
	ended    time.Time // when the daemon ended, and its holds with it
}

// holdCount is the number of holds in force from a time on.
type holdCount struct {
	at time.Time
	n  int
}

// hold adds change to the number of holds in force.
func (j *journal) hold(change int) {
	n := change
	if last := len(j.holds); last > 0 {
		n += j.holds[last-1].n
	}
	j.holds = append(j.holds, holdCount{time.Now(), n})
}

// held returns the times before now at which a hold was in force.
func (j *journal) held(now time.Time) (all []span) {
	if !j.ended.IsZero() && j.ended.Before(now) {
		now = j.ended
	}
	for i, h := range j.holds {
		to := now
		if i+1 < len(j.holds) {
			to = j.holds[i+1].at
		}
		if h.n > 0 {
			all = append(all, span{h.at, to})
		}
	}
	return all
}

// verdictOn identifies the lock of a verdict.
type verdictOn struct {
	name  string
	token int64
}

type announcement struct {
	name    string
	verdict verdict.Verdict
}

type outcome struct {
	name, uuid string
	revision   int64
	certain    bool
}

func (j *journal) removals() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range j.outcome {
		if o.certain {
			n++
		}
	}
	return n
}

// Enabled implements slog.Handler.
func (j *journal) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

// WithAttrs implements slog.Handler.
func (j *journal) WithAttrs([]slog.Attr) slog.Handler { return j }

// WithGroup implements slog.Handler.
func (j *journal) WithGroup(string) slog.Handler { return j }

// Handle implements slog.Handler.
func (j *journal) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value; return true })
	j.mu.Lock()
	defer j.mu.Unlock()
	switch r.Message {
	case message.Removing:
		v, _ := attrs["verdict"].Any().(verdict.Verdict)
		a := announcement{attrs["lock"].String(), v}
		j.announce = append(j.announce, a)
		if on := (verdictOn{a.name, v.Token}); j.first[on].IsZero() {
			j.first[on] = time.Now()
		}
	case message.HoldBegins:
		j.hold(1)
	case message.HoldEnds:
		j.hold(-1)
	case message.Removed:
		j.outcome = append(j.outcome, outcome{attrs["lock"].String(), attrs["uuid"].String(), attrs["revision"].Int64(), true})
	case message.Ambiguous:
		j.outcome = append(j.outcome, outcome{attrs["lock"].String(), attrs["uuid"].String(), 0, false})
	}
	return nil
}
