package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func captured(level slog.Level) (*zap.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return newZap(slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: level}))), &b
}

func TestLogLevels(t *testing.T) {
	lg, out := captured(slog.LevelDebug)
	for level, write := range map[string]func(string, ...zap.Field){
		"DEBUG": lg.Debug, "INFO": lg.Info, "WARN": lg.Warn, "ERROR": lg.Error,
	} {
		out.Reset()
		write("m")
		require.Equal(t, level, decode(t, out)["level"])
	}
}

func TestLogBelowTheLevelIsDropped(t *testing.T) {
	lg, out := captured(slog.LevelWarn)
	lg.Info("no")
	require.Empty(t, out.String())
	lg.Warn("yes")
	require.NotEmpty(t, out.String())
}

func TestLogCarriesFields(t *testing.T) {
	lg, out := captured(slog.LevelInfo)
	lg.With(zap.String("target", "t")).Info("m", zap.Error(errors.New("broken")), zap.Strings("endpoints", []string{"a", "b"}),
		zap.Uint("attempt", 2), zap.Duration("wait", time.Second))
	got := decode(t, out)
	require.NotEmpty(t, got["time"])
	delete(got, "time")
	require.Equal(t, map[string]any{
		"level": "INFO", "msg": "m", "component": "etcd_client", "target": "t", "error": "broken",
		"endpoints": []any{"a", "b"}, "attempt": 2.0, "wait": float64(time.Second),
	}, got)
}

func TestLogOfFailedAttemptsIsForDebugging(t *testing.T) {
	for message, want := range map[string]string{
		"retrying of unary invoker failed":                         "DEBUG",
		"retrying of unary invoker failed to fetch new auth token": "DEBUG",
		"clientv3/retry_interceptor: getToken failed":              "DEBUG",
		"something else": "WARN",
	} {
		lg, out := captured(slog.LevelInfo)
		lg.Warn(message, zap.String("method", "Put"))
		require.Equal(t, want == "DEBUG", out.String() == "", message)

		lg, out = captured(slog.LevelDebug)
		lg.Warn(message, zap.String("method", "Put"))
		require.Equal(t, want, decode(t, out)["level"], message)
	}
}

// The daemon's log is read by many: neither password nor key or value may get into it.
func TestLogHoldsNoSecrets(t *testing.T) {
	var b lockedBuffer
	o := asAda("127.0.0.1:1")
	o.RequestTimeout = 50 * time.Millisecond
	o.Logger = slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, err := New(o)
	require.NoError(t, err)
	_, err = c.Put(t.Context(), "the-key", "the-value")
	require.Error(t, err)
	require.NoError(t, c.Close())
	require.Contains(t, b.String(), "etcdserverpb.KV/Put", "nothing logged: the test shows nothing")
	for _, secret := range []string{"secret", "the-key", "the-value"} {
		require.NotContains(t, b.String(), secret, "%q is in the log", secret)
	}
}

func decode(t *testing.T, b *bytes.Buffer) map[string]any {
	t.Helper()
	var got map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &got))
	return got
}

// lockedBuffer may be read while connections still log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
