package sim

import (
	"sync"

	"go.uber.org/zap/zapcore"
)

// disk is etcd's log, which etcd writes to before it applies entries, and which stalls there.
type disk struct {
	mu sync.Mutex
	// resumed is closed when the disk resumes, nil unless it is stalled.
	resumed chan struct{}
}

func (d *disk) set(stalled bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case stalled && d.resumed == nil:
		d.resumed = make(chan struct{})
	case !stalled && d.resumed != nil:
		close(d.resumed)
		d.resumed = nil
	}
}

// applying is what etcd logs before it applies entries.
const applying = "Applying entries"

// Enabled implements zapcore.Core.
func (*disk) Enabled(zapcore.Level) bool { return true }

// With implements zapcore.Core.
func (d *disk) With([]zapcore.Field) zapcore.Core { return d }

// Check implements zapcore.Core.
func (d *disk) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Message == applying {
		return to.AddCore(e, d)
	}
	return to
}

// Write implements zapcore.Core: it waits while the disk is stalled.
func (d *disk) Write(zapcore.Entry, []zapcore.Field) error {
	d.mu.Lock()
	resumed := d.resumed
	d.mu.Unlock()
	if resumed != nil {
		<-resumed
	}
	return nil
}

// Sync implements zapcore.Core.
func (*disk) Sync() error { return nil }
