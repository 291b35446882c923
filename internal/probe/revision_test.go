package probe

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// deadline is what outages add to the deadline of a lock that was written with a stamp, or without one.
func (p *Probe) deadline(written int64, learned time.Time, stamped bool) time.Duration {
	d, _ := p.Allowance(written, learned, stamped)
	return d
}

// Rule 6: what was written before an outage ended gets it, whenever the daemon learned of it.
func TestS3_AnOutageCountsForWhatWasWrittenBeforeItsEnd(t *testing.T) {
	t.Parallel()
	onEtcd(t, func(t *testing.T, p *Probe, cluster *memetcd.Cluster) {
		writer, err := cluster.Connect()
		require.NoError(t, err)
		write := func() int64 {
			resp, err := writer.Put(t.Context(), "a", "")
			require.NoError(t, err)
			return resp.Header.Revision
		}
		good, before := p.Status().Good, write()
		cluster.Set(memetcd.Faults{Refuse: true})
		pass(20 * second)
		cluster.Set(memetcd.Faults{})
		within := write()
		pass(5 * second)
		late, lasted := time.Now(), outagesOf(p).end().Sub(good)
		require.Equal(t, lasted, p.deadline(before, late, true))
		require.Equal(t, lasted, p.deadline(within, late, true), "at the revision of the answer that ended it")
		require.Zero(t, p.deadline(write(), late, true))
		pass(second)
		require.Equal(t, cluster.Revision(), p.Status().Revision)
		require.Zero(t, p.later(late), "patience gets what was after the write was learned")
		cluster.Set(memetcd.Faults{Refuse: true})
		pass(20 * second)
		require.Equal(t, time.Since(p.Status().Good)+unfinished, p.deadline(math.MaxInt64-1, time.Now(), true), "one in progress counts for everything")
	})
}

// A renewal without a stamp may have been on its way for as long as a request may take.
func TestS3_AnOutageCountsForAnUnstampedRenewalThatWasOnItsWay(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Interval: second, Timeout: 5 * second, Patience: 2 * second}}
	p.outages.add(after(0), after(10), 7)
	for arrived, want := range map[float64]time.Duration{9: 10 * second, 10.1: 10 * second, 15: 10 * second, 15.1: 0} {
		require.Equal(t, want, p.deadline(8, after(arrived), false), "arrived after %v s", arrived)
	}
	require.Zero(t, p.deadline(8, after(10.1), true), "a stamp shows it")
	require.Equal(t, 10*second, p.deadline(8, after(10), true), "it ended after the write was learned")
}

// What lies in two outages, since the probe that ended the first was slow, counts once, and also where only the
// second one counts.
func TestS3_WhatLiesInTwoOutagesCountsOnceForEach(t *testing.T) {
	t.Parallel()
	var o outages
	o.add(after(0), after(10), 7)
	o.add(after(4), after(20), 8)
	o.add(after(30), after(31), 8)
	none := after(1000)
	require.Equal(t, 21*second, o.of(7, none).sum())
	require.Equal(t, 17*second, o.of(8, none).sum())
	require.Zero(t, o.of(9, none).sum())
	require.Equal(t, 11*second, o.after(after(10)))
}

// Of several answers the largest revision counts, also where the one that ended the outage was recorded first.
func TestS3_AnOutageHasTheNewestRevisionThatWasShown(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Interval: second, Patience: 2 * second}}
	header := func(rev int64) *clientv3.AlarmResponse {
		return &clientv3.AlarmResponse{Header: &etcdserverpb.ResponseHeader{Revision: rev}}
	}
	p.begin(epoch)
	p.note(after(9), header(12))
	p.note(after(10), header(10))
	require.True(t, p.ended(after(9), after(9), after(10), nil, nil))
	require.Equal(t, 10*second, p.outages.of(12, after(1000)).sum())
	p.note(after(40), &clientv3.AlarmResponse{})
	require.EqualValues(t, math.MaxInt64, p.revision, "etcd 3.4 does not say it")
}

// Outages of what etcd was before it was restored are of no lock that there is now; one in progress still is.
func TestOutagesAreForgottenWithTheHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Probe{Options: Options{Interval: second, Patience: 2 * second}, revision: 7}
		p.outages.add(after(0), after(10), 7)
		p.Forget()
		require.Zero(t, p.deadline(1, after(5), true))
		require.Zero(t, p.revision)
		p.begin(time.Now())
		pass(10 * second)
		p.Forget()
		require.Equal(t, 10*second+unfinished, p.deadline(1, time.Now(), true))
	})
}
