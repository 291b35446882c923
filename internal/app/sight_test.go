package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// owner takes and renews locks by a clock of its own.
type owner struct {
	t      *testing.T
	client *clientv3.Client
	host   string
	// behind is how far its clock is.
	behind time.Duration
}

// now is in milliseconds, as a stamp is.
func (o owner) now() time.Time { return time.Now().Add(-o.behind).Truncate(time.Millisecond) }

// lock takes a lock for a while, and returns its deadline by our clock.
func (o owner) lock(name string, ttl time.Duration) time.Time {
	o.t.Helper()
	now := o.now()
	put(o.t, o.client,
		clientv3.OpPut(prefix+name+"/uuid", "uuid of "+name),
		clientv3.OpPut(prefix+name+"/hostname", o.host),
		clientv3.OpPut(prefix+name+"/locked_at", stamp(now)),
		clientv3.OpPut(prefix+name+"/auto_unlock_at", stamp(now.Add(ttl))))
	return now.Add(o.behind + ttl)
}

// renew pushes the deadline forward, if the lock is there, and returns it by our
// clock.
func (o owner) renew(name string, ttl time.Duration) time.Time {
	o.t.Helper()
	now := o.now()
	resp, err := o.client.Txn(o.t.Context()).
		If(clientv3.Compare(clientv3.Value(prefix+name+"/uuid"), "=", "uuid of "+name)).
		Then(clientv3.OpPut(prefix+name+"/auto_unlock_at", stamp(now.Add(ttl))),
			clientv3.OpPut(prefix+name+"/alive_at", stamp(now))).
		Commit()
	require.NoError(o.t, err)
	require.True(o.t, resp.Succeeded, "%s was taken from its living owner", name)
	return now.Add(o.behind + ttl)
}

// renewUntil renews again and again.
func (o owner) renewUntil(end time.Time, name string, ttl time.Duration) (deadline time.Time) {
	o.t.Helper()
	require.Eventually(o.t, func() bool {
		deadline = o.renew(name, ttl)
		return time.Now().After(end)
	}, soon, ttl/4)
	return deadline
}

// By our clock its deadlines are past from the start.
func TestS2_SlowOwnerIsNotRemovedEarly(t *testing.T) {
	const ttl = 2 * time.Second
	cluster, client := newEtcd(t, localetcd.Options{})
	d := startDaemon(t, cluster.Endpoints())
	d.awaitReaping()
	slow := owner{t, client, "slow.example.org", 30 * time.Second}
	silentGone, aliveGone := watchGone(t, client, "silent"), watchGone(t, client, "alive")
	silent := slow.lock("silent", ttl)
	slow.lock("alive", ttl)
	d.awaitMetric(2, "unlocker_locks", "state", "expired")
	offset := d.metric("unlocker_host_clock_offset_seconds", "hostname", "slow.example.org")
	require.InDelta(t, -30, offset, 1)
	alive := slow.renewUntil(time.Now().Add(2*ttl), "alive", ttl)

	grace := newConfig(nil).Reaper.Grace
	for name, c := range map[string]struct{ deadline, gone time.Time }{
		"silent": {silent, silentGone()}, "alive": {alive, aliveGone()},
	} {
		require.True(t, c.gone.After(c.deadline.Add(grace)), "%s: %s", name, c.gone.Sub(c.deadline))
		require.True(t, c.gone.Before(c.deadline.Add(grace+late)), "%s: %s", name, c.gone.Sub(c.deadline))
		t.Logf("%s: gone %s after its owner's clock had passed the deadline", name, c.gone.Sub(c.deadline))
	}
}

// Of what was there before us nothing is known but that it is there now.
func TestS2_FoundByListingGetsPatience(t *testing.T) {
	const ttl = 4 * time.Second
	cluster, client := newEtcd(t, localetcd.Options{})
	slow := owner{t, client, "slow.example.org", time.Minute}
	slow.lock("silent", ttl)
	slow.lock("alive", ttl)
	owner{t, client, "dead.example.org", time.Hour}.lock("ancient", ttl)
	silentGone, ancientGone := watchGone(t, client, "silent"), watchGone(t, client, "ancient")

	start := time.Now()
	d := startDaemon(t, cluster.Endpoints())
	d.awaitReady()
	slow.renewUntil(time.Now().Add(2*ttl), "alive", ttl)
	c := newConfig(nil).Reaper
	ancient, silent := ancientGone().Sub(start), silentGone().Sub(start)
	t.Logf("gone %s and %s after the start", ancient, silent)
	require.Greater(t, ancient, c.Settle+c.Grace)
	require.Less(t, ancient, ttl, "its deadline is so long past that no clock explains it")
	require.Greater(t, silent, ttl+c.Grace)
	require.Less(t, silent, ttl+c.Grace+3*time.Second)
}
