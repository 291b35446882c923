package scan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// taking is the response of a watch that shows a lock of a host taken.
func taking(rev int64, host string) clientv3.WatchResponse {
	r := clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: rev}}
	for field, value := range map[string]string{
		"hostname": host, "locked_at": lock.TimestampOf(time.Now()).String(), "uuid": host,
	} {
		r.Events = append(r.Events, &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{
			Key: []byte(layout.Key(host, field)), Value: []byte(value), CreateRevision: rev, ModRevision: rev,
		}})
	}
	return r
}

// Events that waited for the watch say nothing about their owners' clocks.
func TestEventsAreLiveAfterTheFirstProgressNotice(t *testing.T) {
	t.Parallel()
	s := newScanner(t, client(t, "127.0.0.1:1"))
	w := &watching{Scanner: s}
	responses := make(chan clientv3.WatchResponse, 5)
	responses <- clientv3.WatchResponse{Created: true, Header: &etcdserverpb.ResponseHeader{Revision: 9}}
	responses <- taking(1, "replayed")
	responses <- taking(2, "replayed too")
	responses <- clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: 2}}
	responses <- taking(3, "live")
	close(responses)
	require.ErrorIs(t, w.follow(t.Context(), responses, func() {}), errEnded)
	stats, err := s.Table.Stats(t.Context(), 9)
	require.NoError(t, err)
	require.EqualValues(t, 3, stats.Acquired)
	require.Equal(t, 1, stats.Clocks.Hosts)
	require.InDelta(t, 0, stats.Clocks.Median.Seconds(), 1)
}

func TestLiveEventsOfEtcdAreMeasured(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil)
	w.connected() // which a progress notice has shown, as nothing was written
	w.acquire("a")
	w.inLine()
	clocks := w.stats().Clocks
	require.Equal(t, 1, clocks.Hosts)
	require.InDelta(t, 0, clocks.Median.Seconds(), 1)
}

func TestStatusHasTimeAndHistoryOfTheListing(t *testing.T) {
	t.Parallel()
	s := newView()
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
