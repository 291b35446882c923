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
	// poll is the longest pause between two looks at a condition. A look is often a
	// scrape, and many tests that wait must not keep the machine busy.
	poll = 100 * time.Millisecond
)

// Eventually waits until the condition holds, and fails the test with the message if it
// does not hold within Soon. It calls the condition from the goroutine of the test, so that
// the condition may fail the test, too.
func Eventually(t testing.TB, condition func() bool, message ...any) {
	t.Helper()
	began := time.Now()
	for pause := poll / 16; !condition(); pause = min(2*pause, poll) {
		if time.Since(began) > Soon {
			require.FailNow(t, "the condition did not hold in time", message...)
		}
		<-time.After(pause)
	}
}

// Main runs the tests of a package from its TestMain, up to six of those that are
// parallel at a time: they wait more than they compute. Afterwards it calls the closers
// and fails where goroutines are left.
func Main(m *testing.M, closers ...func() error) {
	_ = flag.Set("test.parallel", "6") // -parallel on the command line overrides it
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
