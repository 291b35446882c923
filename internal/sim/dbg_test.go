package sim

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

type dbg struct {
	slog.Handler
	t0 *time.Time
}

func (d dbg) Handle(ctx context.Context, r slog.Record) error {
	s := ""
	r.Attrs(func(a slog.Attr) bool { s += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	if len(s) > 300 {
		s = s[:300]
	}
	fmt.Println(time.Since(*d.t0).Round(time.Millisecond), r.Message, s)
	return d.Handler.Handle(ctx, r)
}
func (d dbg) Enabled(context.Context, slog.Level) bool { return true }

func TestDbg(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(120), Holders: []holder{
		{Name: "a/b", Host: 1, Interval: s(2), TTL: s(5), Retry: s(5), LockedAt: true, AliveAt: true, Seconds: true, Stall: s(14.8), StallsFor: s(1.75)},
	}, Faults: []fault{{Kind: newCluster, At: s(11.2)}}}
	var t0 time.Time
	j := runReal(t, h, without{handler: func(h slog.Handler) slog.Handler {
		if t0.IsZero() {
			t0 = time.Now()
		}
		return dbg{h, &t0}
	}})
	for _, v := range j.violations {
		t.Log(v.promise, v.at, v.text)
	}
	t.Log(j.removed)
}
