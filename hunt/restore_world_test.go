//go:build hunt

package hunt

import (
	"context"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// keeper is the holder of one lock, which it renews until it dies, or for ever.
type keeper struct {
	*acquisition
	life            time.Duration // 0 is for ever
	interval, retry time.Duration
	stamps          bool // it writes alive_at

	// failed are the requests that failed, or were late. lost is when the lock was not its
	// own any more. mu of the acquisition guards them.
	failed []span
	lost   time.Time
}

// employ starts the holders. Some of them die while ctx lasts. Those that hold a lock for a
// short time end with short.
func (r *round) employ(ctx, short context.Context) {
	living, dying, least := 30, 8, 3*time.Second
	if r.few {
		living, dying, least = 1, 1, 9*time.Second
	}
	for i := range living + dying {
		h := r.holder(i)
		k := &keeper{acquisition: r.acquisition(h, fmt.Sprintf("long-%d", i), least), stamps: i%3 > 0 || i >= living}
		k.interval = between(r.dice, k.span/4, k.span/2)
		if r.few || r.dice.IntN(3) == 0 {
			k.interval = k.span / 2
		}
		k.retry = between(r.dice, 200*time.Millisecond, k.interval)
		if i >= living {
			k.life = between(r.dice, time.Millisecond, 9*time.Second)
		}
		r.keepers[k.uuid] = k
		r.running.Go(func() { k.run(ctx) })
	}
	for i := range 3 {
		h := r.holder(100 + i)
		r.running.Go(func() { r.takeAndRelease(short, h) })
	}
}

func (r *round) holder(id int) *holder {
	return &holder{world: r.world, client: r.direct[id%len(r.direct)], id: id, rand: r.rand(uint64(1 + id)), clock: &clock{steps: []step{{}}}}
}

func (r *round) acquisition(h *holder, name string, least time.Duration) *acquisition {
	h.count++
	l := &acquisition{holder: h, name: name, uuid: fmt.Sprintf("%d-%d", h.id, h.count), first: time.Now(), span: between(h.rand, least, 10*time.Second)}
	r.registry.add(l)
	return l
}

func (r *round) takeAndRelease(ctx context.Context, h *holder) {
	for ctx.Err() == nil {
		l := r.acquisition(h, fmt.Sprintf("short-%d-%d", h.id, h.count), 3*time.Second)
		if l.lock() {
			pause(ctx, between(h.rand, 50*time.Millisecond, time.Second))
		}
		l.stop()
		l.unlock()
		pause(ctx, between(h.rand, 50*time.Millisecond, time.Second))
	}
}

func (k *keeper) run(ctx context.Context) {
	if !k.acquire(ctx) {
		return
	}
	if k.life > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.life)
		defer cancel()
	}
	for next := time.Now().Add(k.interval); ; {
		if pause(ctx, time.Until(next)); ctx.Err() != nil {
			k.stop()
			return
		}
		call := time.Now()
		held, err := k.renew()
		wait := k.interval
		if err != nil || call.Sub(next) > 100*time.Millisecond {
			k.note(span{From: next, To: time.Now()})
		}
		if err != nil {
			wait, call = k.retry, time.Now()
		} else if !held {
			k.lose()
			return
		}
		next = call.Add(wait)
	}
}

// acquire tries for as long as a busy machine may keep etcd from answering in time.
func (k *keeper) acquire(ctx context.Context) bool {
	for begin := time.Now(); ; {
		call := time.Now()
		if k.lock() {
			return true
		}
		k.note(span{From: call, To: time.Now()})
		switch {
		case ctx.Err() != nil:
			return false
		case time.Since(begin) > time.Minute:
			k.world.violate("the hunt itself: %s was not acquired", k.name)
			return false
		}
	}
}

func (k *keeper) renew() (held bool, err error) {
	ops := []clientv3.Op{clientv3.OpPut(k.key("auto_unlock_at"), k.stamp(time.Now().Add(k.span)))}
	if k.stamps {
		ops = append(ops, clientv3.OpPut(k.key("alive_at"), k.stamp(time.Now())))
	}
	resp, err := k.txn(k.isHeld(), ops)
	return err == nil && resp.Succeeded, err
}

func (k *keeper) note(failed span) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed = append(k.failed, failed)
}

func (k *keeper) lose() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = time.Now()
}

// gone returns when the holder of a lock stopped or lost it, zero if it renews.
func (r *round) gone(l *acquisition) time.Time {
	if k := r.keepers[l.uuid]; k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.lost.IsZero() {
			return k.lost
		}
		return k.stopped
	}
	return l.stoppedAt()
}

// replica runs one daemon after another, all with the same proxy and log.
type replica struct {
	proxy  *localetcd.Proxy
	log    etcdtest.Log
	app    *app.App
	cancel context.CancelFunc
	done   chan error

	// fresh is set until the daemon is first noted. history is the number of other
	// histories that it had noticed when it was last noted.
	fresh   bool
	history int
	knows   knowledge
}

// knowledge is what a daemon has certainly seen: in an era, all events up to a revision,
// as events if they are after the revision of its listing.
type knowledge struct {
	era              int
	listed, revision int64
}

func (r *round) start(d *replica) {
	c := config.Default()
	c.Etcd.Endpoints = []string{d.proxy.Addr()}
	c.Etcd.DialTimeout, c.Etcd.RequestTimeout = time.Second, time.Second
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Reaper.ClockTolerance, c.Reaper.Grace, c.Reaper.StandbyDelay = tolerance, grace, standby
	c.Reaper.Settle, c.Reaper.Freshness = roundSettle, 2*time.Second
	c.Reaper.ProbeInterval = 200 * time.Millisecond
	c.Reaper.Storm.MinLocks = 0
	c.Election.TTL = 2 * time.Second
	a, err := app.New(c, d.log.Logger())
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	d.app, d.cancel, d.done, d.fresh, d.knows = a, cancel, make(chan error, 1), true, knowledge{}
	go func() { d.done <- a.Run(ctx) }()
}

// roundSettle is shorter than the settle of TestHunt, whose locks it must outlast.
const roundSettle = time.Second

func (r *round) stop(d *replica) {
	if d.app == nil {
		return
	}
	d.cancel()
	if err := <-d.done; err != nil {
		r.violate("a daemon ended with an error: %v", err)
	}
	d.app = nil
}

// note notes what a daemon has seen. It must be called before each kill of etcd: if the
// daemon noticed a restore since the last call, it knows only of the present era.
func (r *round) note(d *replica) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	s, err := d.app.Snapshot(ctx)
	require.NoError(r.t, err)
	era := len(r.eras) - 1
	if d.fresh || s.Scan.History > d.history {
		d.knows = knowledge{era: era}
	}
	d.fresh, d.history = false, s.Scan.History
	if d.knows.era != era || s.Scan.Revision == 0 {
		return
	}
	if lines := d.log.Lines(api.LogListed); len(lines) > 0 {
		d.knows.revision, d.knows.listed = s.Scan.Revision, revisionOf(lines[len(lines)-1])
	}
}
