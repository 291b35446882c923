package reaper_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// full is a log that cannot write some lines about some locks.
type full struct {
	slog.Handler
	is    *atomic.Bool
	locks map[string]bool
	lines []string
}

func (f full) Handle(ctx context.Context, r slog.Record) error {
	broken := false
	r.Attrs(func(a slog.Attr) bool {
		broken = broken || a.Key == "lock" && f.locks[a.Value.String()]
		return true
	})
	if broken && f.is.Load() && slices.Contains(f.lines, r.Message) {
		return errors.New("no space left on device")
	}
	return f.Handler.Handle(ctx, r)
}

func TestS7_NothingIsSentThatCannotBeLogged(t *testing.T) {
	for name, c := range map[string]struct {
		mode verdict.Mode
		msg  string
		done func(h *harness) int
	}{
		"enforce": {verdict.Enforce, api.LogRemoving, (*harness).removed},
		"dry run": {verdict.DryRun, api.LogWouldRemove, func(h *harness) int { return int(h.Stats().Would) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var broken atomic.Bool
				broken.Store(true)
				h := newHarness(t, nil, func(o *reaper.Options) {
					o.Rules.Mode = c.mode
					o.Logger = slog.New(full{o.Logger.Handler(), &broken, map[string]bool{"b": true, "c": true}, []string{c.msg}})
				})
				h.source.again = true
				h.expired("a", "b", "c")
				h.give(h.dues("a", "b", "c")...)
				<-time.After(time.Hour)
				require.Equal(t, 1, c.done(h), "what is logged is removed")
				require.Len(t, h.get("b/"), 5)
				require.Len(t, h.get("c/"), 5)
				tries := h.failures()[lockstore.ReasonUnlogged]
				require.Len(t, h.failures(), 1)
				require.InDelta(t, 2*3600/5, tries, 400, "neither never again nor without a pause")
				require.Len(t, h.log.with(t, api.LogCannotLog, ""), int(tries))
				require.Len(t, h.log.with(t, c.msg, ""), 1)

				broken.Store(false)
				<-time.After(time.Minute)
				require.Equal(t, 3, c.done(h))
				require.Len(t, h.log.with(t, c.msg, ""), 3)
			})
		})
	}
}

// An outcome that cannot be logged is counted as a failure, too. It is logged as soon as that is possible.
func TestS7_AnOutcomeThatCannotBeLoggedIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Logger = slog.New(full{o.Logger.Handler(), &broken, map[string]bool{"a": true}, []string{api.LogRemoved}})
		})
		h.expired("a")
		h.remove("a")
		require.Equal(t, 1, h.removed())
		require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonUnlogged: 1}, h.failures())
		require.Empty(t, h.log.with(t, api.LogRemoved, "a"))
		broken.Store(false)
		<-time.After(2 * time.Second)
		require.Len(t, h.log.with(t, api.LogRemoved, "a"), 1)
		require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonUnlogged: 1}, h.failures())
	})
}

// The log is a file on a disk that is full.
func TestS7_NothingIsSentWhileTheDiskOfTheLogIsFull(t *testing.T) {
	device, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	var handler atomic.Pointer[slog.Handler]
	use := func(h slog.Handler) { handler.Store(&h) }
	use(slog.NewJSONHandler(device, nil))
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
		o.Logger = slog.New(rotated{&handler})
	})
	h.source.again = true
	h.expired("a", "b")
	h.give(h.dues("a", "b")...)
	h.await(func() bool { return h.failures()[lockstore.ReasonUnlogged] >= 6 })
	require.Zero(t, h.sent.Load())
	require.Len(t, h.keys(), 10)
	require.Len(t, h.failures(), 1)
	use(h.log.logger().Handler())
	h.await(func() bool { return h.removed() == 2 })
	require.Empty(t, h.keys())
	require.Len(t, h.log.with(t, api.LogRemoving, ""), 2)
}

// rotated is a log whose handler is replaced while it is used.
type rotated struct{ handler *atomic.Pointer[slog.Handler] }

func (r rotated) Enabled(ctx context.Context, l slog.Level) bool {
	return (*r.handler.Load()).Enabled(ctx, l)
}
func (r rotated) Handle(ctx context.Context, rec slog.Record) error {
	return (*r.handler.Load()).Handle(ctx, rec)
}
func (r rotated) WithAttrs([]slog.Attr) slog.Handler { return r }
func (r rotated) WithGroup(string) slog.Handler      { return r }

// Where nothing is removed, the configuration may ask for less than all verdicts.
func TestADryRunKeepsToTheLevelOfTheLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.Mode = verdict.DryRun
		}, func(o *reaper.Options) {
			buffer := o.Logger.Handler()
			o.Logger = slog.New(quiet{buffer})
		})
		h.expired("a")
		h.remove("a")
		require.EqualValues(t, 1, h.Stats().Would)
		require.Empty(t, h.log.with(t, api.LogWouldRemove, ""))
		require.Empty(t, h.failures())
	})
}

// quiet is a log of warnings.
type quiet struct{ slog.Handler }

func (quiet) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
