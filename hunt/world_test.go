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
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

const (
	prefix  = "/mutexes/"
	members = 3
	// The holders of a group share its proxies and several clients.
	holderGroups, clientsPerGroup, holders = 2, 4, 160
	daemons                                = 3
	names                                  = 500
)

// world is everything that takes part in a hunt.
type world struct {
	t       *testing.T
	seed    uint64
	cluster *cluster
	direct  []*clientv3.Client // one for each member, without a proxy
	groups  []*group
	slots   []*slot
	binary  string // of the daemon

	registry *registry
	replay   *replay
	pulse    *pulse
	faults   *faults
	quiets   []span
	began    time.Time
	outages  []span // of etcd

	ctx         context.Context
	cancel      context.CancelFunc
	joined      sync.WaitGroup // the replay and the pulse
	running     sync.WaitGroup // the holders
	stopHolders context.CancelFunc
	holderCtx   context.Context

	mu         sync.Mutex
	violations []string
}

type span = judges.Span

// group is the proxies through which some clients connect, one to each member.
type group struct {
	name    string
	proxies []*localetcd.Proxy
	mu      sync.Mutex
	broken  []span
	cut     []span // those from all members, without the time to reconnect
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

// disturbed reports whether connections of the group were broken at a time within s.
func (g *group) disturbed(s span) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.broken, func(b span) bool { return b.Overlap(s) > 0 })
}

// cutOff returns the times in which the clients of the group had no connection.
func (g *group) cutOff() []span {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cut
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, seed: seed, registry: newRegistry(), binary: build(t, without(t)...)}
	w.cluster = newCluster(t, w.violate)
	if seed%2 == 1 {
		w.cluster.guard()
	}
	for i := range members {
		w.direct = append(w.direct, w.client(w.cluster.endpoints()[i:i+1]))
	}
	for i := range holderGroups {
		w.groups = append(w.groups, w.newGroup(fmt.Sprintf("holders-%d", i)))
	}
	for i := range daemons {
		w.slots = append(w.slots, w.newSlot(w.newGroup(fmt.Sprintf("daemon-%d", i))))
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.holderCtx, w.stopHolders = context.WithCancel(w.ctx)
	t.Cleanup(w.cancel)
	w.replay = newReplay(w, w.client(w.cluster.endpoints()))
	w.pulse = &pulse{}
	w.faults = newFaults(w)
	return w
}

func (w *world) newGroup(name string) *group {
	g := &group{name: name}
	for i := range members {
		g.proxies = append(g.proxies, w.cluster.proxy(i))
	}
	return g
}

func (w *world) client(endpoints []string) *clientv3.Client { return w.cluster.connect(endpoints) }

func (w *world) rand(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, stream)) }

func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *world) start() {
	w.began = time.Now()
	w.joined.Go(func() { w.replay.run(w.ctx) })
	for _, client := range w.direct {
		w.joined.Go(func() { w.pulse.run(w.ctx, client) })
	}
	for _, s := range w.slots {
		s.start()
	}
	for g, group := range w.groups {
		var clients []*clientv3.Client
		for range clientsPerGroup {
			clients = append(clients, w.client(group.endpoints()))
		}
		for i := range holders / holderGroups {
			h := newHolder(w, group, clients[i%clientsPerGroup], g*holders+i)
			w.running.Go(func() { h.run(w.holderCtx) })
		}
	}
}

// injectFaults injects faults for d, and returns when all of them are healed.
func (w *world) injectFaults(d time.Duration) {
	ctx, cancel := context.WithTimeout(w.ctx, d)
	defer cancel()
	w.faults.run(ctx)
}

func (w *world) waitQuietly(d time.Duration) {
	from := time.Now()
	pause(w.ctx, d)
	w.quiets = append(w.quiets, span{From: from, To: time.Now()})
}

// finish stops the holders, waits until their locks are removed, and stops everything.
func (w *world) finish() {
	from := time.Now()
	w.stopHolders()
	w.running.Wait()
	gone := false
	for time.Since(from) < time.Minute && !gone {
		pause(w.ctx, 200*time.Millisecond)
		gone = w.replay.held() == 0
	}
	w.quiets = append(w.quiets, span{From: from, To: time.Now()})
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	remaining, err := w.direct[0].Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(w.t, err)
	for _, kv := range remaining.Kvs {
		w.violate("S6: %s remains at the end", kv.Key)
	}
	etcdtest.Eventually(w.t, func() bool { return w.replay.revision() >= remaining.Header.Revision })
	for _, s := range w.slots {
		s.stop()
	}
	w.cancel()
	w.joined.Wait()
	w.check()
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// pulse records when etcd accepted writes. Its connections are never disturbed.
type pulse struct {
	mu    sync.Mutex
	beats []span
}

// run sends writes to one member without waiting for the answers.
func (p *pulse) run(ctx context.Context, client *clientv3.Client) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var pending sync.WaitGroup
	defer pending.Wait()
	for ctx.Err() == nil {
		pending.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			start := time.Now()
			if _, err := client.Put(ctx, "/hunt/pulse", ""); err == nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.beats = append(p.beats, span{From: start, To: time.Now()})
			}
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// shortest is the minimum time without a write that is an outage and no pause of the pulse.
const shortest = 300 * time.Millisecond

// outages returns the times longer than minimum in which no write was in flight that
// succeeded.
func (p *pulse) outages(minimum time.Duration) (all []span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortFunc(p.beats, func(a, b span) int { return a.From.Compare(b.From) })
	var last time.Time
	for _, b := range p.beats {
		if !last.IsZero() && b.From.Sub(last) > minimum {
			all = append(all, span{From: last, To: b.From})
		}
		if b.To.After(last) {
			last = b.To
		}
	}
	return all
}

// within returns the durations of the outages in s.
func (p *pulse) within(s span) (all []time.Duration) {
	for _, o := range p.outages(shortest) {
		if d := o.Overlap(s); d > 0 {
			all = append(all, d.Round(time.Millisecond))
		}
	}
	return all
}
