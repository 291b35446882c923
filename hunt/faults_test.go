//go:build hunt

package hunt

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// faults injects faults on several lanes in parallel, and on each lane one after another.
type faults struct {
	world *world
	lanes []lane
	// replacing is set while most faults on daemons replace them.
	replacing atomic.Bool

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
	add(time.Second, 5*time.Second, f.member)
	add(300*time.Millisecond, 2*time.Second, f.maintenance)
	add(4*time.Second, 12*time.Second, f.alarm)
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
	joined.Wait()
	f.disarm() // an alarm whose request timed out can be raised after it was disarmed
}

// maintenance does what operators do. It returns "" if etcd refused.
func (f *faults) maintenance(ctx context.Context, r *rand.Rand) string {
	i := r.IntN(members)
	kinds := []string{"compaction", "defragmentation", "leader moved", "tokens expired"}
	if f.world.cluster.user == "" {
		kinds = kinds[:3]
	}
	kind := kinds[r.IntN(len(kinds))]
	client := f.world.direct[i]
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var err error
	switch kind {
	case "compaction":
		_, err = client.Compact(ctx, f.world.replay.revision())
	case "defragmentation":
		_, err = maintenance(client).Defragment(ctx, &pb.DefragmentRequest{})
	case "tokens expired": // a password that is set ends all tokens of the user
		_, err = client.UserChangePassword(ctx, root, root)
	default:
		err = f.moveLeader(ctx, i)
	}
	if err != nil {
		return ""
	}
	return kind
}

func (f *faults) moveLeader(ctx context.Context, to int) error {
	from := leader(ctx, f.world.direct)
	if from < 0 || from == to {
		to = (to + 1) % members
	}
	target, err := maintenance(f.world.direct[to]).Status(ctx, &pb.StatusRequest{})
	if err != nil || from < 0 {
		return context.Canceled
	}
	_, err = f.world.direct[from].MoveLeader(ctx, target.Header.MemberId)
	return err
}

// alarm raises the NOSPACE alarm, with which etcd refuses puts, and disarms it. It returns ""
// if etcd refused.
func (f *faults) alarm(ctx context.Context, r *rand.Rand) string {
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	raise := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 1, Alarm: pb.AlarmType_NOSPACE}
	_, err := maintenance(f.world.direct[r.IntN(members)]).Alarm(asking, raise)
	if err == nil {
		pause(ctx, between(r, 500*time.Millisecond, 4*time.Second))
	}
	f.disarm() // also after an error: the alarm may have been raised
	if err != nil {
		return ""
	}
	return "NOSPACE"
}

// disarm disarms all alarms even if the hunt ends.
func (f *faults) disarm() {
	var err error
	for start := time.Now(); time.Since(start) < time.Minute; {
		for _, client := range f.world.direct {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err = client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			cancel()
			if err == nil {
				return
			}
		}
		pause(f.world.ctx, 50*time.Millisecond)
	}
	f.world.violate("the hunt itself: the alarm is not disarmed: %v", err)
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
		g.cut = append(g.cut, span{From: from, To: to})
	}
	// A second longer, since clients need some time to reconnect.
	g.broken = append(g.broken, span{From: from, To: time.Now().Add(time.Second)})
	return g.name[:len(g.name)-2] + ": " + kind + ", " + scope
}

func (f *faults) heal(g *group) {
	if err := g.heal(); err != nil {
		f.world.violate("the hunt itself: %v", err)
	}
}
