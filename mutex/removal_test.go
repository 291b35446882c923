//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	byReplica = `{"uuid": %q, "when": "2026-11-23T10:00:00Z", "trigger": "expiry", "replica": "host_1", "verdict": {"reason": "patience"}}`
	byUser    = `{"uuid": %q, "when": "2026-11-23T10:00:00Z", "trigger": "manual", "who": "ada@host", "reason": "OPS-1\u001b[2J"}`
)

// sized returns a record that has so many bytes.
func sized(bytes int) string {
	const begin, end = `{"uuid": %q, "who": "ada", "more": "`, `"}`
	return begin + strings.Repeat("x", bytes-len(begin+end)+len("%q")-len(`"00000000-0000-4000-8000-000000000000"`)) + end
}

// remove deletes a lock and, after a delay, writes its record.
func remove(ctx context.Context, admin *memetcd.Link, l *mutex.Lock, key, record string, delay time.Duration) error {
	_, err := admin.Delete(ctx, "/mutexes/a/", clientv3.WithPrefix())
	<-time.After(delay)
	if record == "" || err != nil {
		return err
	}
	_, err = admin.Put(ctx, key, fmt.Sprintf(record, l.UUID()))
	return err
}

// Whoever loses a lock learns which replica or user removed it, when, and by which rule.
func TestLossSaysWhoRemovedTheLock(t *testing.T) {
	for name, c := range map[string]struct {
		record, audit string
		delay         time.Duration
		want          string
	}{
		"by a replica":          {byReplica, "", 0, `lock "a" is lost: removed by force by replica "host_1" (trigger "expiry"), rule "patience" at 2026-11-23T10:00:00Z`},
		"written later":         {byReplica, "", time.Second, `lock "a" is lost: removed by force by replica "host_1" (trigger "expiry"), rule "patience" at 2026-11-23T10:00:00Z`},
		"by a user":             {byUser, "", 0, `lock "a" is lost: removed by force by "ada@host" (trigger "manual"): "OPS-1\x1b[2J" at 2026-11-23T10:00:00Z`},
		"with a forged trigger": {`{"uuid": %q, "trigger": "\u001b[2J", "when": "2026-11-23T10:00:00Z"}`, "", 0, `lock "a" is lost: removed by force (trigger "\x1b[2J") at 2026-11-23T10:00:00Z`},
		"elsewhere":             {byReplica, "/x", 0, `lock "a" is lost: removed by force by replica "host_1" (trigger "expiry"), rule "patience" at 2026-11-23T10:00:00Z`},
		"no record":             {"", "", 0, `lock "a" is lost: removed by force`},
		"of another":            {`{"uuid": "another%.0s"}`, "", 0, `lock "a" is lost: removed by force`},
		"not a record":          {`[%q`, "", 0, `lock "a" is lost: removed by force`},
		"of another type":       {`{"uuid": %q, "who": "ada", "when": 5}`, "", 0, `lock "a" is lost: removed by force`},
		"of 32 KiB":             {sized(32 << 10), "", 0, `lock "a" is lost: removed by force by "ada" at 0001-01-01T00:00:00Z`},
		"larger":                {sized(32<<10 + 1), "", 0, `lock "a" is lost: removed by force`},
		"too late to be read":   {byReplica, "", 10 * time.Second, `lock "a" is lost: removed by force`},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				var opts []mutex.Option
				prefix := "/unlocker/audit/mutexes/"
				if c.audit != "" {
					opts, prefix = append(opts, mutex.AuditPrefix(c.audit)), c.audit+"/"
				}
				client, _ := connect(opts...)
				_, admin := connect()
				removed := make(chan error, 1)
				err := client.WithLock(t.Context(), "a", func(ctx context.Context) error {
					<-time.After(time.Second)
					l, _ := mutex.FromContext(ctx)
					go func() {
						removed <- remove(t.Context(), admin, l, protocol.RecordKey(prefix, "a", l.Token()), c.record, c.delay)
					}()
					return done(t, ctx)
				})
				require.EqualError(t, err, c.want)
				require.ErrorIs(t, err, mutex.ErrForced)
				require.NoError(t, <-removed)
			})
		})
	}
}

// Who loses a lock that another has taken meanwhile learns both.
func TestLossToAnotherSaysWhoRemovedTheLock(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		record := protocol.RecordKey("/unlocker/audit/mutexes/", "a", l.Token())
		for _, op := range []clientv3.Op{
			clientv3.OpDelete("/mutexes/a/", clientv3.WithPrefix()), clientv3.OpPut("/mutexes/a/uuid", "other"), clientv3.OpPut(record, fmt.Sprintf(byReplica, l.UUID())),
		} {
			_, err := link.Do(t.Context(), op)
			require.NoError(t, err)
		}
		require.EqualError(t, l.Unlock(t.Context()), `lock "a" is lost: taken by another: uuid "other": `+
			`removed by replica "host_1" (trigger "expiry"), rule "patience" at 2026-11-23T10:00:00Z`)
	})
}

// Without the right to read it the record is asked for once.
func TestRecordThatMayNotBeRead(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		_, admin := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.Allow("/mutexes/", "/mutexes0")
		require.NoError(t, remove(t.Context(), admin, l, "", "", 0))
		reads := count[*etcdserverpb.RangeRequest](link)
		began := time.Now()
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrForced)
		require.Zero(t, time.Since(began))
		require.EqualValues(t, 1, reads.Load())
	})
}

// The loss is reported at once, whatever the record takes, and nothing is read for a lock that is held or released.
func TestRecordsAreReadAfterALossOnly(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		client, link := connect()
		_, admin := connect()
		reads := 0
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			r, read := req.(*etcdserverpb.RangeRequest)
			if read = read && strings.HasPrefix(string(r.Key), "/unlocker/audit/"); read {
				reads++
			}
			return memetcd.Faults{HoldAnswers: read}
		})
		l, err := client.Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(time.Second)
		require.NoError(t, l.Alive(t.Context()))
		require.NoError(t, l.Unlock(t.Context()))
		require.Zero(t, reads)

		l, err = client.Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(time.Second)
		require.NoError(t, remove(t.Context(), admin, l, "", "", 0))
		began := time.Now()
		var lost *mutex.LostError
		require.ErrorAs(t, done(t, l.Context(t.Context())), &lost)
		require.Zero(t, time.Since(began))
		require.Nil(t, lost.Removal(t.Context()))
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, 1, reads)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrForced)
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}
