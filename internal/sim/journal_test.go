package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// journal is a daemon's log, which the judge reads.
type journal struct{ d *daemon }

func (j *journal) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler               { return j }
func (j *journal) WithGroup(string) slog.Handler                    { return j }

var errFull = errors.New("no space left on device")

// Handle implements slog.Handler.
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	var line judges.Line
	switch r.Message {
	case api.LogHoldEnds, api.LogRemoving, api.LogRemoved, api.LogConflict, api.LogWithdrawn, api.LogRefused, api.LogAmbiguous, api.LogCannotRemove, api.LogHoldBegins:
		var text bytes.Buffer
		if err := slog.NewJSONHandler(&text, nil).Handle(ctx, r); err != nil {
			return err
		}
		if err := json.Unmarshal(text.Bytes(), &line); err != nil {
			return err
		}
	}
	if line.Message == api.LogHoldBegins || line.Message == api.LogHoldEnds {
		j.d.w.judge.holds(j.d, &line)
	}
	if j.d.w.judge.full(j.d) {
		return errFull
	}
	j.d.w.judge.logged(j.d, &line)
	return nil
}

// full reports whether the daemon's log takes nothing.
func (j *judge) full(d *daemon) bool {
	now := j.w.elapsed()
	for _, f := range j.faults() {
		if f.Kind == logFull && f.meets(replicas, d.replica) && f.At <= now && now < f.end() {
			return true
		}
	}
	return false
}

// holds counts the holds that a daemon says have begun, also to a log that takes nothing, and notes when one ended.
func (j *judge) holds(d *daemon, line *judges.Line) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if line.Message == api.LogHoldEnds {
		j.of[d].freed = j.w.elapsed()
		delete(j.of[d].holds, line.Hold)
		return
	}
	j.of[d].holds[line.Hold] = j.w.elapsed()
	j.begun[line.Hold]++
	if line.Hold == string(verdict.HoldRegressed) {
		j.of[d].forgot = j.w.elapsed()
	}
}

// logged takes a line about a removal.
func (j *judge) logged(d *daemon, line *judges.Line) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.w.at(j.w.elapsed())
	for hold, since := range j.of[d].holds {
		if line.Message == api.LogRemoving && since < j.w.elapsed() && verdict.Hold(hold).Kind().Stops {
			j.convict("S3", d, line.Lock, "announced during the hold %s, which it has known since %s", hold, since)
		}
	}
	j.convictAll(d, line.Lock, j.of[d].log.Take(line, judges.Span{From: now, To: now}))
}

// noLoose convicts removals whose outcome the log does not have, requests that may
// still be on their way aside.
func (j *judge) noLoose(d *daemon, now time.Duration) {
	for _, a := range j.of[d].log.Open() {
		if open := j.w.at(now).Sub(a.At.To); (a.Sent || open > 3*time.Second) && now-d.started > j.w.config.Etcd.RequestTimeout && !j.disturbed(d, now-20*time.Second, now) {
			j.convict("S7", d, a.Lock, "no outcome in the log")
		}
	}
}
