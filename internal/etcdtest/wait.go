package etcdtest

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const (
	// Soon is the deadline for everything that depends only on etcd and the program under
	// test, on a busy machine.
	Soon = 30 * time.Second
	poll = 20 * time.Millisecond
)

// Eventually waits until the condition holds, and fails the test with the message if it
// does not hold within Soon. It calls the condition from the goroutine of the test, so that
// the condition may fail the test, too.
func Eventually(t testing.TB, condition func() bool, message ...any) {
	t.Helper()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for began := time.Now(); !condition(); <-tick.C {
		if time.Since(began) > Soon {
			require.FailNow(t, "the condition did not hold in time", message...)
		}
	}
}

// Main runs the tests of a package from its TestMain. Up to eight tests run in parallel,
// since they mostly wait. Afterwards it calls the closers, and fails if goroutines remain.
func Main(m *testing.M, closers ...func() error) {
	_ = flag.Set("test.parallel", "8") // -parallel on the command line overrides it
	goleak.VerifyTestMain(suite{m, closers})
}

type suite struct {
	*testing.M
	closers []func() error
}

// Run implements goleak.TestingM. It waits longer than goleak for the goroutines of killed
// servers to end.
func (s suite) Run() int {
	code := s.M.Run()
	for _, closer := range s.closers {
		if closer() != nil {
			return 1
		}
	}
	for end := time.Now().Add(Soon); goleak.Find() != nil && time.Now().Before(end); {
		continue // Find waits
	}
	return code
}
