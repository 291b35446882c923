//go:build hunt

package hunt

import (
	"context"
	"math/rand/v2"
	"syscall"
	"time"
)

// member disturbs one member, the leader, or several. Only one lane does, so that a fault
// costs the quorum only if it is meant to.
func (f *faults) member(ctx context.Context, r *rand.Rand) string {
	switch n := r.IntN(20); {
	case n < 1:
		return f.longOutage(ctx, r)
	case n < 4:
		return f.replaceMember(ctx, r)
	case n < 8:
		return f.slowDisk(ctx, r)
	case n < 12:
		return f.partition(ctx, r)
	case n < 14:
		i := r.IntN(members)
		f.killMembers(ctx, between(r, time.Second, 4*time.Second), i, (i+1)%members)
		return "quorum lost"
	default:
		name, i := f.victim(ctx, r)
		f.killMembers(ctx, between(r, 300*time.Millisecond, 3*time.Second), i)
		return name + " killed"
	}
}

// victim returns the leader or any member.
func (f *faults) victim(ctx context.Context, r *rand.Rand) (name string, i int) {
	if leader := leader(ctx, f.world.direct); leader >= 0 && r.IntN(2) == 0 {
		return "leader", leader
	}
	return "member", r.IntN(members)
}

// killMembers kills members, and starts them again after d.
func (f *faults) killMembers(ctx context.Context, d time.Duration, down ...int) {
	for _, i := range down {
		f.world.cluster.members[i].kill()
	}
	pause(ctx, d)
	// Dead members are started again even if the hunt ends.
	starting, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.world.cluster.restart(starting, down...); err != nil {
		f.world.violate("the hunt itself: %v", err)
	}
}

// longOutage lasts long enough for the daemons to be replaced meanwhile.
func (f *faults) longOutage(ctx context.Context, r *rand.Rand) string {
	f.replacing.Store(true)
	defer f.replacing.Store(false)
	i := r.IntN(members)
	f.killMembers(ctx, between(r, 6*time.Second, 12*time.Second), i, (i+1)%members)
	return "quorum lost for long"
}

// slowDisk stops members again and again, as a disk does on which each fsync takes long.
func (f *faults) slowDisk(ctx context.Context, r *rand.Rand) string {
	name, i := f.victim(ctx, r)
	slow := f.world.cluster.members[i : i+1]
	if r.IntN(3) == 0 {
		name, slow = "all members", f.world.cluster.members
	}
	for end := time.Now().Add(between(r, time.Second, 5*time.Second)); ctx.Err() == nil && time.Now().Before(end); {
		for _, m := range slow {
			m.signal(syscall.SIGSTOP)
		}
		pause(ctx, between(r, 100*time.Millisecond, 900*time.Millisecond))
		for _, m := range slow {
			m.signal(syscall.SIGCONT)
		}
		pause(ctx, between(r, 20*time.Millisecond, 300*time.Millisecond))
	}
	return name + " slow"
}

// partition cuts a member off from its peers, but not from its clients.
func (f *faults) partition(ctx context.Context, r *rand.Rand) string {
	name, i := f.victim(ctx, r)
	f.world.cluster.members[i].tell(cutLine)
	pause(ctx, between(r, time.Second, 4*time.Second))
	f.world.cluster.members[i].tell(mendLine)
	return name + " partitioned"
}

// replaceMember replaces a member by an empty one.
func (f *faults) replaceMember(ctx context.Context, r *rand.Rand) string {
	name, i := f.victim(ctx, r)
	f.world.cluster.members[i].kill()
	pause(ctx, between(r, 0, 2*time.Second))
	joining, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.world.cluster.replace(joining, i, f.world.direct); err != nil {
		f.world.violate("the hunt itself: %v", err)
	}
	return name + " replaced"
}
