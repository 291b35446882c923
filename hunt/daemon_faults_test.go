//go:build hunt

package hunt

import (
	"context"
	"math"
	"math/rand/v2"
	"syscall"
	"time"
)

// daemon injects a fault into a daemon or its connections.
func (f *faults) daemon(ctx context.Context, r *rand.Rand, s *slot) string {
	switch n := r.IntN(20); {
	case n < 4 || f.replacing.Load():
		return f.replace(ctx, r, s)
	case n < 7:
		s.suspend(func() { pause(ctx, between(r, 500*time.Millisecond, 8*time.Second)) })
		return "daemon suspended for a while"
	case n < 10:
		return f.setClock(ctx, r, s)
	}
	return f.breakNetwork(ctx, r, s.group)
}

// replace stops or kills a daemon, and starts another.
func (f *faults) replace(ctx context.Context, r *rand.Rand, s *slot) string {
	kind := "daemon killed"
	if r.IntN(2) == 0 {
		kind = "daemon stopped"
		s.stop()
	} else {
		s.end(syscall.SIGKILL)
	}
	pause(ctx, between(r, 0, 3*time.Second))
	s.start()
	return kind
}

// replaceAll kills all daemons, and starts others: none of them has seen any lock before.
func (f *faults) replaceAll(ctx context.Context, r *rand.Rand) string {
	for _, s := range f.world.slots {
		s.faulty.Lock()
		defer s.faulty.Unlock()
		s.end(syscall.SIGKILL)
	}
	pause(ctx, between(r, 0, 4*time.Second))
	for _, s := range f.world.slots {
		s.start()
	}
	return "all daemons killed"
}

// setClock sets the clock of a daemon by up to a day, and back after a while. It leaves at most
// one of the clocks wrong, since two other daemons must remove locks in time.
func (f *faults) setClock(ctx context.Context, r *rand.Rand, s *slot) string {
	ahead := time.Duration(math.Pow(86_400, r.Float64()) * float64(time.Second))
	if r.IntN(2) == 0 {
		ahead = -ahead
	}
	f.set(s, ahead)
	if r.IntN(3) == 0 && f.leaveWrong(s) {
		return "daemon's clock set for good"
	}
	pause(ctx, between(r, 300*time.Millisecond, 4*time.Second))
	f.set(s, 0)
	f.rightAgain(s)
	return "daemon's clock set for a while"
}

func (f *faults) set(s *slot, ahead time.Duration) {
	if err := s.clock.set(ahead.Truncate(time.Second)); err != nil {
		f.world.violate("the hunt itself: %v", err)
	}
}

// leaveWrong reports whether no other clock is wrong for good.
func (f *faults) leaveWrong(s *slot) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong == nil {
		f.wrong = s
	}
	return f.wrong == s
}

func (f *faults) rightAgain(s *slot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong == s {
		f.wrong = nil
	}
}
