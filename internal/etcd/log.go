package etcd

import (
	"context"
	"log/slog"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// retryMessage begins etcd's warning about each failed attempt, a line per call while
// etcd is away. The error reaches the caller, who logs it: here it is for debugging.
const retryMessage = "retrying of unary invoker failed"

// newZap gives the etcd client a logger that writes to lg. gRPC's own, global logger is
// left alone.
func newZap(lg *slog.Logger) *zap.Logger {
	return zap.New(&slogCore{handler: lg.With("component", "etcd_client").Handler()})
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
	if strings.HasPrefix(e.Message, retryMessage) {
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
