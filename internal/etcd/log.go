package etcd

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Levels say at which level a failure is logged that may come often: as a warning once a minute for each kind,
// otherwise for debugging. They are for one goroutine.
type Levels map[string]time.Time

// Of returns the level of a failure of a kind that has come now.
func (l Levels) Of(kind string) slog.Level {
	if time.Since(l[kind]) < time.Minute {
		return slog.LevelDebug
	}
	l[kind] = time.Now()
	return slog.LevelWarn
}

// perAttempt reports whether a warning of clientv3 is about one failed attempt of a call.
// There are one or two per call while etcd is down or refuses the client. They are logged
// at Debug: the caller gets the error, and logs it.
func perAttempt(message string) bool {
	for _, start := range []string{
		"retrying of unary invoker failed",
		"retry failed to fetch new auth token",
		"retrying RecvMsg",
		"clientv3/retry_interceptor: getToken failed",
		"streamer failed to create ClientStream",
		"failed reestablishStreamAndResendBuffer",
		"error occurred during lease keep alive",
	} {
		if strings.HasPrefix(message, start) {
			return true
		}
	}
	return false
}

// newZap returns a logger for clientv3 that writes to lg. The global logger of gRPC is not changed.
func newZap(lg *slog.Logger) *zap.Logger {
	return zap.New(&slogCore{handler: lg.With("component", "etcd_client").Handler()})
}

// slogCore is a zapcore.Core that writes to a slog.Handler: time, message and fields, but
// not the caller and the stack.
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

// slogLevel maps every level above Error to Error. zap itself panics or exits after it. The levels of slog are four apart.
func slogLevel(l zapcore.Level) slog.Level { return min(4*slog.Level(l), slog.LevelError) }

// attrs encodes one field at a time, to keep their order.
func attrs(fields []zapcore.Field) (out []slog.Attr) {
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder()
		f.AddTo(enc)
		for k, v := range enc.Fields {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}
