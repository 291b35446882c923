package etcdtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
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

// Log is a buffer for the log of a daemon or a process. It is safe for concurrent use. The
// zero value is ready for use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Logger returns a logger that writes JSON of all levels to the log.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// String returns everything that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	lines := slices.Collect(strings.Lines(l.String()))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// Lines returns the fields of the lines with the message, or of all lines if it is "", in
// their order. It skips lines that are not JSON.
func (l *Log) Lines(message string) (lines []map[string]any) {
	for text := range bytes.Lines([]byte(l.String())) {
		var line map[string]any
		if json.Unmarshal(text, &line) == nil && (message == "" || line["msg"] == message) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Metric returns, of an exposition in Prometheus' text format, the sum of the series
// that have all labels, given as name, value, name, value. A histogram counts as the
// number of its samples, and a metric that is not there as 0.
func Metric(t testing.TB, exposition, name string, labels ...string) (sum float64) {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(exposition))
	require.NoError(t, err)
	for _, m := range families[name].GetMetric() {
		if hasLabels(m, labels) {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == pair[0] && l.GetValue() == pair[1]
		}) {
			return false
		}
	}
	return true
}
