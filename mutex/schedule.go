package mutex

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// scheduler sends tasks again and again, those that are due at about the same time together. Its
// goroutine runs while it has any. A client has one for the locks that it renews, and one for
// those that it has abandoned.
type scheduler struct {
	open context.Context // of etcd's client
	// overlap: tasks that are due are sent while others have no answer yet.
	overlap bool
	// most is how many tasks it has, 0 for no limit. The oldest give way.
	most int

	mu    sync.Mutex
	tasks map[task]uint64 // in the order of the numbers
	added uint64
	next  time.Time     // when it looks again
	wake  chan struct{} // nil while no goroutine runs
}

type task interface {
	// due returns when the task is to be sent next, and from when on it may be, to save transactions.
	// over reports that it is never sent again.
	due(now time.Time) (at, early time.Time, over bool)
	// begin returns what is to be sent, or nil, and puts the next time off.
	begin() attempt
}

// attempt is a request that is sent once.
type attempt interface {
	request
	timeout() time.Duration
	// ended is called after the answer, or without one.
	ended()
}

func (s *scheduler) add(st *store, tasks ...task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		s.tasks, s.wake = map[task]uint64{}, make(chan struct{}, 1)
		go s.run(st, s.wake)
	}
	now := time.Now()
	for _, t := range tasks {
		s.added++
		s.tasks[t] = s.added
		if at, _, _ := t.due(now); at.Before(s.next) {
			s.look()
		}
	}
	if surplus := len(s.tasks) - s.most; s.most > 0 && surplus > 0 {
		numbers := slices.Sorted(maps.Values(s.tasks))
		maps.DeleteFunc(s.tasks, func(_ task, number uint64) bool { return number < numbers[surplus] })
	}
}

// wakeUp makes the goroutine look at once, as a task may be due earlier than it was.
func (s *scheduler) wakeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
}

// remove ends the goroutine with the last task.
func (s *scheduler) remove(t task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.tasks, t); len(s.tasks) == 0 {
		s.look()
	}
}

// look makes the goroutine look at once. It is called with the mutex held.
func (s *scheduler) look() {
	select {
	case s.wake <- struct{}{}:
	default: // it will, or there is none
	}
}

func (s *scheduler) run(st *store, wake <-chan struct{}) {
	ctx, cancel := context.WithCancel(s.open)
	defer cancel() // of what is sent
	for {
		due, next := s.due(time.Now())
		switch {
		case next.IsZero():
			return
		case len(due) > 0 && s.overlap:
			go s.send(ctx, st, due)
		case len(due) > 0:
			s.send(ctx, st, due)
		default:
			select {
			case <-time.After(time.Until(next)):
			case <-wake:
			case <-ctx.Done():
			}
		}
	}
}

// due returns what is to be sent now, and when it is to look again: never, if next is zero.
func (s *scheduler) due(now time.Time) (due []attempt, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var early []task
	for t := range s.tasks {
		at, from, over := t.due(now)
		if over || s.open.Err() != nil {
			delete(s.tasks, t)
			continue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
		if !from.After(now) {
			early = append(early, t)
		}
	}
	if len(s.tasks) == 0 {
		s.wake = nil
		return nil, time.Time{}
	}
	if s.next = next; next.After(now) {
		return nil, next
	}
	slices.SortFunc(early, func(a, b task) int { return int(s.tasks[a]) - int(s.tasks[b]) })
	for _, t := range early {
		if a := t.begin(); a != nil {
			due = append(due, a)
		}
	}
	return due, now
}

func (s *scheduler) send(ctx context.Context, st *store, due []attempt) {
	timeout, requests := attemptTimeout, make([]request, len(due))
	for i, a := range due {
		timeout, requests[i] = min(timeout, a.timeout()), a
	}
	st.round(ctx, timeout, requests)
	for _, a := range due {
		a.ended()
	}
	s.wakeUp()
}
