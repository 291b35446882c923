//go:build hunt

package hunt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const (
	prefix  = "/mutexes/"
	members = 3
	// Owners use several clients behind each group of proxies.
	ownerGroups, clientsPerGroup, owners = 2, 4, 160
	daemons                              = 3
	names                                = 500
)

// world is all that takes part in a hunt.
type world struct {
	t       *testing.T
	seed    uint64
	cluster *etcdtest.Etcd
	direct  []*clientv3.Client // one for each member, without a proxy
	owners  []*group
	slots   []*slot

	registry *registry
	replay   *replay
	pulse    *pulse
	faults   *faults
	quiets   []span

	ctx     context.Context
	cancel  context.CancelFunc
	joined  sync.WaitGroup // the watcher and the pulse
	owning  sync.WaitGroup
	dying   context.CancelFunc
	ownerCx context.Context

	mu         sync.Mutex
	violations []string
}

type span struct{ from, to time.Time }

// cut returns what s and o have in common; its end is before its start where
// that is nothing.
func (s span) cut(o span) span {
	if o.from.After(s.from) {
		s.from = o.from
	}
	if o.to.Before(s.to) {
		s.to = o.to
	}
	return s
}

// overlap returns how long s and o lie upon each other.
func (s span) overlap(o span) time.Duration {
	both := s.cut(o)
	return max(0, both.to.Sub(both.from))
}

// group is the way of some clients to etcd: a proxy before each member.
type group struct {
	name    string
	proxies []*localetcd.Proxy
	mu      sync.Mutex
	broken  []span
}

func (g *group) endpoints() []string {
	var all []string
	for _, p := range g.proxies {
		all = append(all, p.Addr())
	}
	return all
}

func (g *group) heal() error {
	for _, p := range g.proxies {
		if err := p.Heal(); err != nil {
			return err
		}
	}
	return nil
}

// troubled tells whether the way was broken, in part or whole, within a span.
func (g *group) troubled(s span) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.broken, func(b span) bool { return b.overlap(s) > 0 })
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, seed: seed, registry: newRegistry()}
	w.cluster = etcdtest.Start(t, localetcd.Options{Members: members})
	for i := range members {
		w.direct = append(w.direct, w.client(w.cluster.Endpoints()[i:i+1]))
	}
	for i := range ownerGroups {
		w.owners = append(w.owners, w.newGroup(fmt.Sprintf("owners-%d", i)))
	}
	for i := range daemons {
		w.slots = append(w.slots, &slot{world: w, group: w.newGroup(fmt.Sprintf("daemon-%d", i))})
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.ownerCx, w.dying = context.WithCancel(w.ctx)
	t.Cleanup(w.cancel)
	w.replay = newReplay(w, w.client(w.cluster.Endpoints()))
	w.pulse = &pulse{}
	w.faults = newFaults(w)
	return w
}

func (w *world) newGroup(name string) *group {
	g := &group{name: name}
	for i := range members {
		g.proxies = append(g.proxies, w.cluster.Proxy(i))
	}
	return g
}

func (w *world) client(endpoints []string) *clientv3.Client {
	return w.cluster.Connect(func(c *clientv3.Config) { c.Endpoints = endpoints })
}

func (w *world) rand(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, stream)) }

func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *world) start() {
	w.joined.Go(func() { w.replay.run(w.ctx) })
	for _, client := range w.direct {
		w.joined.Go(func() { w.pulse.run(w.ctx, client) })
	}
	for _, s := range w.slots {
		s.start()
	}
	for g, group := range w.owners {
		var clients []*clientv3.Client
		for range clientsPerGroup {
			clients = append(clients, w.client(group.endpoints()))
		}
		for i := range owners / ownerGroups {
			o := newOwner(w, group, clients[i%clientsPerGroup], g*owners+i)
			w.owning.Go(func() { o.run(w.ownerCx) })
		}
	}
}

// rage lets all faults loose for a while, and returns when all are healed.
func (w *world) rage(d time.Duration) {
	ctx, cancel := context.WithTimeout(w.ctx, d)
	defer cancel()
	w.faults.run(ctx)
}

func (w *world) rest(d time.Duration) {
	from := time.Now()
	pause(w.ctx, d)
	w.quiets = append(w.quiets, span{from, time.Now()})
}

// finish lets the owners die, waits until their locks are gone, and stops all.
func (w *world) finish() {
	from := time.Now()
	w.dying()
	w.owning.Wait()
	gone := false
	for time.Since(from) < time.Minute && !gone {
		pause(w.ctx, 200*time.Millisecond)
		gone = w.replay.held() == 0
	}
	w.quiets = append(w.quiets, span{from, time.Now()})
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	left, err := w.direct[0].Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(w.t, err)
	for _, kv := range left.Kvs {
		w.violate("S6: %s is left at the end", kv.Key)
	}
	etcdtest.Eventually(w.t, func() bool { return w.replay.revision() >= left.Header.Revision })
	for _, s := range w.slots {
		s.stop()
	}
	w.cancel()
	w.joined.Wait()
	w.judge()
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// pulse tells when etcd took writes, whoever's way to it was broken.
type pulse struct {
	mu    sync.Mutex
	beats []span
}

// run writes through one member, again and again, without waiting for answers.
func (p *pulse) run(ctx context.Context, client *clientv3.Client) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var under sync.WaitGroup
	defer under.Wait()
	for ctx.Err() == nil {
		under.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			start := time.Now()
			if _, err := client.Put(ctx, "/hunt/pulse", ""); err == nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.beats = append(p.beats, span{start, time.Now()})
			}
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// outages returns the times longer than least in which no write was under way
// that succeeded.
func (p *pulse) outages(least time.Duration) (all []span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortFunc(p.beats, func(a, b span) int { return a.from.Compare(b.from) })
	var last time.Time
	for _, b := range p.beats {
		if !last.IsZero() && b.from.Sub(last) > least {
			all = append(all, span{last, b.from})
		}
		if b.to.After(last) {
			last = b.to
		}
	}
	return all
}

// within returns how long no write succeeded, longest first, in a span.
func (p *pulse) within(s span) (all []time.Duration) {
	for _, o := range p.outages(300 * time.Millisecond) {
		if d := o.overlap(s); d > 0 {
			all = append(all, d.Round(time.Millisecond))
		}
	}
	return all
}
