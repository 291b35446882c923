//go:build hunt

package hunt

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// faults injects faults on several lanes in parallel, and on each lane one after another.
type faults struct {
	world *world
	lanes []lane

	mu    sync.Mutex
	count map[string]int
	// wrong is the slot whose clock was set for good.
	wrong *slot
}

type lane struct {
	rand               *rand.Rand
	minPause, maxPause time.Duration // before a fault
	once               func(context.Context, *rand.Rand) string
}

func newFaults(w *world) *faults {
	f := &faults{world: w, count: map[string]int{}}
	add := func(minPause, maxPause time.Duration, once func(context.Context, *rand.Rand) string) {
		f.lanes = append(f.lanes, lane{w.rand(uint64(len(f.lanes))), minPause, maxPause, once})
	}
	add(2*time.Second, 7*time.Second, f.member)
	add(300*time.Millisecond, 2*time.Second, f.maintenance)
	for _, g := range w.groups {
		add(time.Second, 5*time.Second, func(ctx context.Context, r *rand.Rand) string { return f.breakNetwork(ctx, r, g) })
	}
	for _, s := range w.slots {
		add(time.Second, 5*time.Second, func(ctx context.Context, r *rand.Rand) string {
			s.faulty.Lock()
			defer s.faulty.Unlock()
			return f.daemon(ctx, r, s)
		})
	}
	add(10*time.Second, 30*time.Second, f.replaceAll)
	return f
}

func (f *faults) total() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.count {
		n += c
	}
	return n
}

func (f *faults) kinds() ([]string, map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.count)), maps.Clone(f.count)
}

// run injects faults until ctx is done, and returns when all of them are healed.
func (f *faults) run(ctx context.Context) {
	var joined sync.WaitGroup
	defer joined.Wait()
	for _, l := range f.lanes {
		joined.Go(func() {
			for {
				pause(ctx, between(l.rand, l.minPause, l.maxPause))
				if ctx.Err() != nil {
					return
				}
				if kind := l.once(ctx, l.rand); kind != "" {
					f.mu.Lock()
					f.count[kind]++
					f.mu.Unlock()
				}
			}
		})
	}
}

// member kills a member, the leader, or two members, so that the quorum is lost.
func (f *faults) member(ctx context.Context, r *rand.Rand) string {
	kind, down := "member killed", []int{r.IntN(members)}
	d := between(r, 300*time.Millisecond, 3*time.Second)
	switch r.IntN(4) {
	case 0:
		if leader := f.leader(ctx); leader >= 0 {
			kind, down = "leader killed", []int{leader}
		}
	case 1:
		kind, down, d = "quorum lost", []int{down[0], (down[0] + 1) % members}, between(r, time.Second, 4*time.Second)
	}
	for _, i := range down {
		f.world.cluster.Kill(i)
	}
	pause(ctx, d)
	// Dead members are started again even if the hunt ends.
	starting, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.world.cluster.Restart(starting, down...); err != nil {
		f.world.violate("the hunt itself: %v", err)
	}
	return kind
}

// leader returns the number of the leading member, or -1.
func (f *faults) leader(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for i, client := range f.world.direct {
		if s, err := client.Status(ctx, f.world.cluster.Endpoints()[i]); err == nil && s.Header.MemberId == s.Leader {
			return i
		}
	}
	return -1
}

// maintenance does what operators do. It returns "" if etcd refused.
func (f *faults) maintenance(ctx context.Context, r *rand.Rand) string {
	i := r.IntN(members)
	kind := []string{"compaction", "defragmentation", "leader moved"}[r.IntN(3)]
	client, endpoint := f.world.direct[i], f.world.cluster.Endpoints()[i]
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var err error
	switch kind {
	case "compaction":
		_, err = client.Compact(ctx, f.world.replay.revision())
	case "defragmentation":
		_, err = client.Defragment(ctx, endpoint)
	default:
		err = f.moveLeader(ctx, i)
	}
	if err != nil {
		return ""
	}
	return kind
}

func (f *faults) moveLeader(ctx context.Context, to int) error {
	from := f.leader(ctx)
	if from < 0 || from == to {
		to = (to + 1) % members
	}
	target, err := f.world.direct[to].Status(ctx, f.world.cluster.Endpoints()[to])
	if err != nil || from < 0 {
		return context.Canceled
	}
	_, err = f.world.direct[from].MoveLeader(ctx, target.Header.MemberId)
	return err
}

// breakNetwork disturbs the connections of a group to one member or to all.
func (f *faults) breakNetwork(ctx context.Context, r *rand.Rand, g *group) string {
	proxies, scope := g.proxies, "all members"
	if r.IntN(2) == 0 {
		i := r.IntN(members)
		proxies, scope = g.proxies[i:i+1], "one member"
	}
	kind := []string{"black hole", "cut", "replies held"}[r.IntN(3)]
	from := time.Now()
	for _, p := range proxies {
		switch kind {
		case "black hole":
			p.Blackhole()
		case "cut":
			p.Cut()
		default:
			p.HoldReplies()
		}
	}
	pause(ctx, between(r, 300*time.Millisecond, 4*time.Second))
	to := time.Now()
	f.heal(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(proxies) == members {
		g.cut = append(g.cut, span{from, to})
	}
	// A second longer, since clients need some time to reconnect.
	g.broken = append(g.broken, span{from, time.Now().Add(time.Second)})
	return g.name[:len(g.name)-2] + ": " + kind + ", " + scope
}

func (f *faults) heal(g *group) {
	if err := g.heal(); err != nil {
		f.world.violate("the hunt itself: %v", err)
	}
}
