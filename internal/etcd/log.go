package etcd

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// perAttempt tells etcd's warnings about each failed attempt at a call, a line or two per
// call while etcd is away or refuses us. The error reaches the caller, who logs it: here
// it is for debugging.
func perAttempt(message string) bool {
	for _, start := range []string{
		"retrying of unary invoker failed",
		"retry failed to fetch new auth token",
		"retrying RecvMsg",
		"clientv3/retry_interceptor: getToken failed",
		"streamer failed to create ClientStream",
		"failed reestablishStreamAndResendBuffer",
	} {
		if strings.HasPrefix(message, start) {
			return true
		}
	}
	return false
}

// newZap gives the etcd client a logger that writes to lg. gRPC's own, global logger is
// left alone.
func newZap(lg *slog.Logger) *zap.Logger {
	return zap.New(&slogCore{handler: lg.With("component", "etcd_client").Handler()})
}

// seldom lets a warning through once a minute: a connection is tried every few seconds.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

func (s *seldom) due(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.IsZero() && now.Sub(s.last) < time.Minute {
		return false
	}
	s.last = now
	return true
}

// slogCore is a zapcore.Core on a slog.Handler: time, message and fields carry over,
// zap's caller and stack do not.
type slogCore struct{ handler slog.Handler }

func (c *slogCore) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), slogLevel(l))
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{handler: c.handler.WithAttrs(attrs(fields))}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if perAttempt(e.Message) {
		e.Level = zapcore.DebugLevel
	}
	if !c.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slogLevel(e.Level)
	r := slog.NewRecord(e.Time, level, e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.handler.Handle(context.Background(), r)
}

func (c *slogCore) Sync() error { return nil }

// slogLevel maps everything above error to error: what zap does then (panic, exit), it
// does by itself.
func slogLevel(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	case l == zapcore.InfoLevel:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

// attrs encodes field by field, which keeps their order.
func attrs(fields []zapcore.Field) []slog.Attr {
	var out []slog.Attr
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder()
		f.AddTo(enc)
		for k, v := range enc.Fields {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}
