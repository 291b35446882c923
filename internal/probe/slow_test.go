package probe

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Where each answer takes longer than the interval, etcd is slow and not down.
func TestASlowEtcdIsNoOutageWithoutEnd(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{9 * second / 10, 11 * second / 10, 3 * second} {
		probed(t, &members{answer: func(context.Context, int) error {
			pass(latency)
			return nil
		}}, func(p *Probe) {
			pass(10 * latency)
			began := time.Now()
			for range 1000 {
				require.False(t, p.Overdue())
				require.Zero(t, p.later(began))
				pass(second / 10)
			}
		})
	}
}

// What an etcd with an alarm takes says nothing of what it takes without.
func TestS3_SlowAnswersWithAnAlarmHideNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		etcd := &slowFake{}
		etcd.nospace.Store(true)
		p, err := New(Options{Etcd: etcd, Members: 1, Interval: second, Timeout: 5 * second, Patience: 2 * second})
		require.NoError(t, err)
		for range 3 {
			p.once(t.Context())
		}
		etcd.nospace.Store(false)
		p.once(t.Context())
		require.False(t, p.Overdue())
		pass(second + 1)
		require.True(t, p.Overdue())
		p.requests.Wait()
	})
}

// slowFake answers after a second.
type slowFake struct{ fake }

func (f *slowFake) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	pass(second)
	return f.fake.AlarmList(ctx)
}

// One slow answer says nothing of the next: a second outage counts in full.
func TestS3_OneSlowAnswerHidesNoOutage(t *testing.T) {
	t.Parallel()
	var until atomic.Int64
	m := &members{answer: func(context.Context, int) error {
		pass(time.Until(time.Unix(0, until.Load())))
		return nil
	}}
	probed(t, m, func(p *Probe) {
		pass(10 * second)
		for range 2 {
			began := time.Now()
			until.Store(began.Add(4 * second).UnixNano())
			pass(4*second + second/2)
			require.GreaterOrEqual(t, p.later(began), 4*second-second/4)
		}
	})
}
