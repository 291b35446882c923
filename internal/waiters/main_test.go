package waiters

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Ends returns how many halves of ends are kept.
func (w *Waiters) Ends() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ends)
}
