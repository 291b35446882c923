package sim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// journal is a daemon's log, which the judge reads.
type journal struct{ d *daemon }

// announcement is the record of a removal in the log.
type announcement struct {
	uuid, deadline string
	revision       int64
	orphan         bool
	fields         int
	// sent, and concluded by the line with its outcome. One without an answer may still
	// be carried out then.
	sent, concluded bool
}

func (j *journal) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler               { return j }
func (j *journal) WithGroup(string) slog.Handler                    { return j }

var errFull = errors.New("no space left on device")

// Handle implements slog.Handler.
func (j *journal) Handle(_ context.Context, r slog.Record) error {
	var name string
	var a announcement
	r.Attrs(func(attr slog.Attr) bool {
		switch attr.Key {
		case "lock":
			name = attr.Value.String()
		case "hold":
			if r.Message == api.LogHoldBegins {
				j.d.w.judge.holds(j.d, attr.Value.String())
			}
		case "record":
			record := attr.Value.Any().(lockstore.Record)
			fields, more := record.Logged()
			a.uuid, a.deadline, a.fields = record.UUID(), record.AutoUnlockText(), len(fields)+more
		case "verdict":
			v := attr.Value.Any().(verdict.Verdict)
			a.revision, a.orphan = v.Revision, v.Trigger == verdict.Orphan
		}
		return true
	})
	if j.d.w.judge.full(j.d) {
		return errFull
	}
	switch r.Message {
	case api.LogRemoving:
		j.d.w.judge.announced(j.d, name, &a)
	case api.LogRemoved, api.LogConflict, api.LogWithdrawn, api.LogRefused, api.LogAmbiguous, api.LogCannotRemove:
		j.d.w.judge.concluded(j.d, name, r.Message == api.LogAmbiguous)
	}
	return nil
}

// full reports whether the daemon's log takes nothing.
func (j *judge) full(d *daemon) bool {
	now := j.w.elapsed()
	for _, f := range j.w.Faults {
		if f.Kind == logFull && f.meets(replicas, d.replica) && f.At <= now && now < f.end() {
			return true
		}
	}
	return false
}

// holds counts the holds that a daemon says have begun, also to a log that takes nothing.
func (j *judge) holds(d *daemon, hold string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.begun[hold]++
	if hold == string(verdict.HoldRegressed) {
		j.of[d].forgot = j.w.elapsed()
	}
}

// announced is the log line before a removal.
func (j *judge) announced(d *daemon, name string, a *announcement) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if a.fields == 0 {
		j.convict("S7", d, name, "the record in the log has no fields")
	}
	if before := j.of[d].open[name]; before != nil && before.uuid == a.uuid && !before.concluded {
		j.convict("S7", d, name, "announced again before the outcome")
	}
	j.of[d].open[name] = a
}

// concluded is the one after it.
func (j *judge) concluded(d *daemon, name string, ambiguous bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if a := j.of[d].open[name]; a != nil && ambiguous {
		a.concluded = true
	} else {
		delete(j.of[d].open, name)
	}
}

// noLoose convicts removals whose outcome the log does not have, requests that may
// still be on their way aside.
func (j *judge) noLoose(d *daemon, now time.Duration) {
	for name, a := range j.of[d].open {
		if a.sent && !a.concluded && now-d.started > j.w.config.Etcd.RequestTimeout && !j.disturbed(d, now-20*time.Second, now) {
			j.convict("S7", d, name, "no outcome in the log")
		}
	}
}
