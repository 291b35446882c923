package scan

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// taking is the response of a watch that shows a lock of a host taken.
func taking(rev int64, host string) clientv3.WatchResponse {
	r := clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: rev}}
	for field, value := range map[string]string{
		"hostname": host, "locked_at": protocol.TimestampOf(time.Now()).String(), "uuid": host,
	} {
		r.Events = append(r.Events, &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{
			Key: []byte(layout.Key(host, field)), Value: []byte(value), CreateRevision: rev, ModRevision: rev,
		}})
	}
	return r
}

// Events are late knowledge up to the revision that was read after the watch
// resumed, and only an answer to the newest stall makes them live.
func TestS2_EventsAreLiveAfterTheRevisionReadSinceTheStall(t *testing.T) {
	t.Parallel()
	s := newScanner(t, client(t, "127.0.0.1:1"))
	w := &watching{Scanner: s}
	w.stall()
	show := func(responses ...clientv3.WatchResponse) {
		t.Helper()
		w.last = time.Now() // nothing has stalled, but for what the test says
		for _, r := range responses {
			require.NoError(t, w.each(t.Context(), r))
		}
	}
	require.Zero(t, w.streams.Load())
	progress := func(rev int64) clientv3.WatchResponse {
		return clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: rev}}
	}
	show(taking(1, "a"), progress(1), taking(2, "b"), progress(2), taking(3, "c"))
	w.stall()
	w.live(notLive+1, 0)
	show(progress(3), taking(4, "d"))
	w.live(notLive+2, 6)
	show(taking(5, "e"))
	both := taking(6, "f")
	both.Events = append(both.Events, taking(7, "g").Events...)
	show(both, taking(8, "h"))
	for name, late := range map[string]bool{"a": true, "b": true, "c": true, "d": true, "e": true, "f": true, "g": false, "h": false} {
		it, found, err := s.Table.Get(t.Context(), name)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, late, it.Observation.Late, name)
		require.Equal(t, !late, it.Observation.Measured, name)
	}
}

func TestLiveEventsOfEtcdAreMeasured(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil)
	w.connected()
	var began time.Time
	var seen table.View
	w.eventually(func() bool {
		began = time.Now()
		w.acquire("a")
		w.inLine()
		var err error
		seen, _, err = w.Table.Get(w.ctx(), "a")
		require.NoError(t, err)
		w.release("a")
		return seen.Observation.Measured
	}, "measured, once a revision was read after the watch began")
	require.LessOrEqual(t, seen.Observation.Offset.Abs(), time.Since(began)+time.Millisecond, "stamps have milliseconds")
}

func TestStatusHasTimeAndHistoryOfTheListing(t *testing.T) {
	t.Parallel()
	s := newView(nil)
	require.Zero(t, s.Listed)
	s.listed(5)
	first := s.Listed
	require.NotZero(t, first)
	s.listed(7)
	require.Equal(t, first, s.Listed, "a resync is not the first")
	require.EqualValues(t, 7, s.Revision)
	require.Zero(t, s.History)
	s.historyChanged()
	require.Zero(t, s.Listed)
	require.Equal(t, 1, s.History)
	s.listed(1)
	require.True(t, s.Listed.After(first))
	require.EqualValues(t, 1, s.Revision)
}

// What the watch has passed stays so where a listing at an older revision ends after it.
func TestStatusOfAListingAndItsFailures(t *testing.T) {
	t.Parallel()
	changes := 0
	s := newView(func() { changes++ })
	s.update(func(s *Status) { s.Listing = true })
	s.listed(5)
	require.False(t, s.Listing)
	require.Equal(t, 1, changes)
	s.progressed(10, 9)
	require.Equal(t, 1, changes)
	s.listed(7)
	require.EqualValues(t, 10, s.Revision)
	require.EqualValues(t, 9, s.Passed)
	require.Equal(t, 2, changes)
	for i, want := range []slog.Level{slog.LevelWarn, slog.LevelDebug} {
		require.Equal(t, want, s.failed(etcd.Timeout, errRegressed))
		require.Equal(t, 3+i, changes)
	}
	s.progressed(11, 11)
	require.Equal(t, slog.LevelWarn, s.failed(etcd.Timeout, errRegressed), "the first one since")
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]Reason{
		errRegressed:               ReasonRegressed,
		table.ErrOlder:             ReasonRegressed,
		etcd.ErrSilent:             etcd.Stalled,
		rpctypes.ErrCompacted:      etcd.Compacted,
		rpctypes.ErrNoSpace:        etcd.Other,
		rpctypes.ErrTooManyOps:     etcd.Other,
		rpctypes.ErrUserNotFound:   etcd.Auth,
		rpctypes.ErrLeaderChanged:  etcd.Unavailable,
		rpctypes.ErrGRPCEmptyKey:   etcd.Other,
		rpctypes.ErrGRPCFutureRev:  etcd.Other,
		rpctypes.ErrGRPCTimeout:    etcd.Unavailable,
		rpctypes.ErrGRPCUserEmpty:  etcd.Auth,
		rpctypes.ErrGRPCNoLeader:   etcd.NoLeader,
		rpctypes.ErrGRPCAuthFailed: etcd.Auth,
	} {
		require.Equal(t, want, classify(fmt.Errorf("check: %w", err)), "%v", err)
		require.Contains(t, Reasons(), want)
	}
}

// What the watch has shown is known by its events, whose header may be far ahead of them, and by notices of progress.
func TestTheWatchHasShownItsEventsAndProgress(t *testing.T) {
	t.Parallel()
	s := newScanner(t, client(t, "127.0.0.1:1"))
	w := s.watch(5)
	ahead := taking(7, "a")
	ahead.Header.Revision = 100
	notice := clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: 9}}
	for i, shown := range []clientv3.WatchResponse{ahead, notice, taking(8, "b"), {Header: ahead.Header, Created: true}} {
		require.NoError(t, w.each(t.Context(), shown))
		want := []int64{7, 9, 9, 9}[i]
		require.Equal(t, want, w.seen.Load())
		require.Equal(t, want, s.Status().Passed)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	valid := newScanner(t, client(t, "127.0.0.1:1")).Options
	valid.Resync = 0
	_, err := New(valid)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		edit func(*Options)
		want string
	}{
		"no client":          {func(o *Options) { o.Client = nil }, "required"},
		"no table":           {func(o *Options) { o.Table = nil }, "required"},
		"no logger":          {func(o *Options) { o.Logger = nil }, "required"},
		"no explanations":    {func(o *Options) { o.Explain = nil }, "required"},
		"no prefix":          {func(o *Options) { o.Layout = protocol.Layout{} }, "required"},
		"no freshness":       {func(o *Options) { o.Freshness = 0 }, "positive"},
		"no tolerance":       {func(o *Options) { o.Tolerance = 0 }, "positive"},
		"no request timeout": {func(o *Options) { o.RequestTimeout = 0 }, "positive"},
		"a negative resync":  {func(o *Options) { o.Resync = -1 }, "positive"},
	} {
		o := valid
		c.edit(&o)
		_, err := New(o)
		require.ErrorContains(t, err, c.want, name)
	}
}
