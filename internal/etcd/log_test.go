package etcd

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func captured(level slog.Level) (*zap.Logger, *etcdtest.Log) {
	var log etcdtest.Log
	return newZap(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level}))), &log
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	lg, out := captured(slog.LevelDebug)
	for level, write := range map[string]func(string, ...zap.Field){
		"DEBUG": lg.Debug, "INFO": lg.Info, "WARN": lg.Warn, "ERROR": lg.Error,
	} {
		write("m" + level)
		require.Len(t, out.Lines("m"+level), 1)
		require.Equal(t, level, out.Lines("m" + level)[0]["level"])
	}
}

func TestLogBelowTheLevelIsDropped(t *testing.T) {
	t.Parallel()
	lg, out := captured(slog.LevelWarn)
	lg.Info("no")
	require.Empty(t, out.String())
	lg.Warn("yes")
	require.NotEmpty(t, out.String())
}

func TestLogCarriesFields(t *testing.T) {
	t.Parallel()
	lg, out := captured(slog.LevelInfo)
	lg.With(zap.String("target", "t")).Info("m", zap.Error(errors.New("broken")), zap.Strings("endpoints", []string{"a", "b"}),
		zap.Uint("attempt", 2), zap.Duration("wait", time.Second))
	got := out.Lines("")
	require.NotEmpty(t, got[0]["time"])
	delete(got[0], "time")
	require.Equal(t, []map[string]any{{
		"level": "INFO", "msg": "m", "component": "etcd_client", "target": "t", "error": "broken",
		"endpoints": []any{"a", "b"}, "attempt": 2.0, "wait": float64(time.Second),
	}}, got)
}

func TestFailedAttemptsAreLoggedAtDebug(t *testing.T) {
	t.Parallel()
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
		require.Equal(t, want, out.Lines(message)[0]["level"], message)
	}
}

// Many people read the daemon's log: it must not contain passwords, keys or values.
func TestLogHoldsNoSecrets(t *testing.T) {
	t.Parallel()
	var b etcdtest.Log
	o := asAda("127.0.0.1:1")
	o.RequestTimeout = 50 * time.Millisecond
	o.Logger = b.Logger()
	c, err := New(o)
	require.NoError(t, err)
	_, err = c.Put(t.Context(), "the-key", "the-value")
	require.Error(t, err)
	require.NoError(t, c.Close())
	require.Contains(t, b.String(), "etcdserverpb.KV/Put", "nothing was logged, so the test proves nothing")
	for _, secret := range []string{"secret", "the-key", "the-value"} {
		require.NotContains(t, b.String(), secret, "%q is in the log", secret)
	}
}
