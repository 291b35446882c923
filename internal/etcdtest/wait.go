package etcdtest

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const (
	// Soon is the deadline of whatever needs no more than etcd and the program under
	// test, on a machine that is busy with other things.
	Soon = 30 * time.Second
	// poll is the longest pause between two looks at a condition. A look is often a
	// scrape, and many tests that wait must not keep the machine busy.
	poll = 100 * time.Millisecond
)

// Eventually waits until the condition holds, and fails the test with the message where
// it does not do so soon. It calls the condition from the test's goroutine, so that it
// may fail the test, too.
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

// Run implements goleak.TestingM. It gives what killed servers leave more time to end
// than goleak does.
func (s suite) Run() int {
	code := s.M.Run()
	for _, closer := range s.closers {
		if closer() != nil {
			return 1
		}
	}
	for end := time.Now().Add(Soon); goleak.Find() != nil && time.Now().Before(end); {
		continue // Find itself waits
	}
	return code
}
