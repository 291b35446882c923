package waiters

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Ends returns how many halves of ends are kept.
func (w *Waiters) Ends() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ends)
}

// Find returns the deadlocks of flows.
func Find(waiting []api.DeadlockFlow, uuid func(lock string) string) []api.Deadlock {
	var all []*flow
	for _, f := range waiting {
		all = append(all, &flow{DeadlockFlow: f})
	}
	return deadlocks(context.Background(), all, func(_ context.Context, lock string) (string, time.Time) { return uuid(lock), time.Time{} })
}
