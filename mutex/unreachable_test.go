//go:build go1.25

package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestUnreachableNamesTheCause(t *testing.T) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { _ = etcd.Close() }()
	c := newClient(t, etcd)
	for name, lock := range map[string]func(context.Context, string, ...mutex.Option) (*mutex.Lock, error){"Lock": c.Lock, "TryLock": c.TryLock} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := lock(ctx, "billing/invoices")
		require.ErrorIs(t, err, mutex.ErrUnreachable, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.EqualError(t, err, `mutex: lock "billing/invoices": etcd at 127.0.0.1:1 was unreachable: dial tcp 127.0.0.1:1: connect: connection refused`, name)
	}
}

func TestWaitForAnEtcdThatIsAway(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		link, err := cluster.Connect()
		require.NoError(t, err)
		log, said := logged()
		c := newClient(t, link.Client, log)
		link.Set(memetcd.Unreachable())
		calls := []func(context.Context) error{
			func(ctx context.Context) error { _, err := c.TryLock(ctx, "a"); return err },
			func(ctx context.Context) error { _, _, err := c.TryLockAll(ctx, []string{"a", "b"}); return err },
		}
		for _, call := range calls {
			began := time.Now()
			require.ErrorIs(t, call(context.Background()), mutex.ErrUnreachable)
			require.Equal(t, 10*time.Second, time.Since(began).Round(time.Second))
		}
		require.Empty(t, said())
		for _, call := range calls {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			require.ErrorIs(t, call(ctx), mutex.ErrUnreachable)
			require.Equal(t, 30*time.Second, time.Since(began).Round(time.Second))
		}
		<-time.After(time.Minute)
		before := len(said())
		time.AfterFunc(150*time.Second, func() { link.Set(memetcd.Faults{}) })
		l, err := c.Lock(context.Background(), "b")
		require.NoError(t, err)
		require.Len(t, said()[before:], 3, "once a minute")
		require.Contains(t, said()[0], "waiting for etcd")
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestLoginWithoutAnAnswer lets only transactions fail: etcd may hold them back for their token. With a real etcd it is
// TestGoClientsLogInAgainAfterARestore.
func TestLoginWithoutAnAnswer(t *testing.T) {
	slow := memetcd.Faults{Request: time.Minute}
	for name, tc := range map[string]struct {
		user       string
		txn, watch memetcd.Faults
		logins     int32
		second     time.Duration // when the second transaction is sent
	}{
		"without a user":        {txn: slow, second: 5 * time.Second},
		"with a user":           {user: "ada", txn: slow, logins: 3, second: 5 * time.Second},
		"all is slow":           {user: "ada", txn: slow, watch: slow, logins: 3, second: 7 * time.Second},
		"where etcd is refused": {user: "ada", txn: memetcd.Faults{Refuse: true}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
				link, err := cluster.Connect(func(cfg *clientv3.Config) { cfg.Username, cfg.Password = tc.user, tc.user })
				require.NoError(t, err)
				c := newClient(t, link.Client)
				link.Set(memetcd.Unreachable())
				short, cancel := context.WithTimeout(t.Context(), 3*time.Second) // which leaves no time for a login
				defer cancel()
				_, err = c.Lock(short, "a")
				require.ErrorIs(t, err, mutex.ErrUnreachable)
				link.Set(memetcd.Faults{})
				<-time.After(20 * time.Second) // what was not answered is released
				began := time.Now()
				var logins, watches, txns atomic.Int32
				var second atomic.Int64
				link.OnRequest(func(req memetcd.Message) memetcd.Faults {
					switch r := req.(type) {
					case *etcdserverpb.AuthenticateRequest:
						logins.Add(1)
					case *etcdserverpb.WatchRequest:
						watches.Add(1)
						return tc.watch
					case *etcdserverpb.TxnRequest:
						if strings.HasPrefix(string(r.Compare[0].Key), "/mutexes/b/") && txns.Add(1) == 2 {
							second.Store(int64(time.Since(began)))
						}
						return tc.txn
					}
					return memetcd.Faults{}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
				defer cancel()
				_, err = c.Lock(ctx, "b")
				require.ErrorIs(t, err, mutex.ErrUnreachable)
				require.Equal(t, tc.logins, logins.Load(), "once a minute at most")
				require.Equal(t, tc.logins > 0, watches.Load() > 0)
				require.Equal(t, tc.second, time.Duration(second.Load()).Truncate(time.Second))
				link.OnRequest(nil)
				<-time.After(2 * time.Minute) // what was not answered is released
			})
		})
	}
}

// TestLoginLeavesTimeToRenew renews a lock with a short patience, of which etcd first executes nothing in time, and answers no
// watch.
func TestLoginLeavesTimeToRenew(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		link, err := cluster.Connect(func(cfg *clientv3.Config) { cfg.Username, cfg.Password = "ada", "ada" })
		require.NoError(t, err)
		l, err := newClient(t, link.Client).Lock(t.Context(), "a", mutex.Patience(2*time.Second))
		require.NoError(t, err)
		var logins, slow atomic.Int32
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			switch req.(type) {
			case *etcdserverpb.AuthenticateRequest:
				logins.Add(1)
			case *etcdserverpb.WatchRequest:
				return memetcd.Faults{Request: time.Minute}
			case *etcdserverpb.TxnRequest:
				if slow.Add(-1) >= 0 {
					return memetcd.Faults{Request: time.Second}
				}
			}
			return memetcd.Faults{}
		})
		slow.Store(1)
		require.NoError(t, l.Alive(t.Context()))
		require.Positive(t, logins.Load())
		require.NoError(t, l.Unlock(t.Context()))
		link.OnRequest(nil)
		<-time.After(2 * time.Minute) // the watch arrives
	})
}

// TestRefusedLogin changes the password of a holder. A real etcd is in TestLockedDownProgram.
func TestRefusedLogin(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		var refused atomic.Bool
		link, err := cluster.Connect(func(cfg *clientv3.Config) {
			cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if refused.Load() {
						return rpctypes.ErrGRPCAuthFailed
					}
					return invoke(ctx, method, req, reply, conn, opts...)
				}))
		})
		require.NoError(t, err)
		c := newClient(t, link.Client, mutex.KeepAlive(time.Hour))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		refused.Store(true)
		const text = "etcd at memetcd refused the login: etcdserver: authentication failed, invalid user ID or password"
		_, err = c.Lock(t.Context(), "b")
		require.EqualError(t, err, `mutex: lock "b": `+text)
		require.ErrorIs(t, err, mutex.ErrUnreachable)
		err = done(t, l.Context(t.Context()))
		require.EqualError(t, err, `lock "a" is lost: `+text)
		var lost *mutex.LostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, mutex.ErrUnreachable, lost.Reason)
		refused.Store(false)
		<-time.After(time.Minute)
		require.Empty(t, uuidIn(t, link, "a"), "it is released as after other outages")
	})
}

func TestWithLockSaysALossOnce(t *testing.T) {
	for name, returned := range map[string]func(context.Context, *mutex.Lock) error{
		"its cause":    func(ctx context.Context, _ *mutex.Lock) error { return context.Cause(ctx) },
		"it, wrapped":  func(ctx context.Context, _ *mutex.Lock) error { return fmt.Errorf("invoice 7: %w", context.Cause(ctx)) },
		"what Held is": func(_ context.Context, l *mutex.Lock) error { return l.Held() },
		"of Alive":     func(_ context.Context, l *mutex.Lock) error { return l.Alive(context.Background()) },
		"of Unlock":    func(_ context.Context, l *mutex.Lock) error { return l.Unlock(context.Background()) },
		"nothing":      func(context.Context, *mutex.Lock) error { return nil },
		"its end":      func(ctx context.Context, _ *mutex.Lock) error { return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				c, link := connect()
				err := c.WithLock(t.Context(), "a", func(ctx context.Context) error {
					l, _ := mutex.FromContext(ctx)
					_, err := link.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
					require.NoError(t, err)
					<-ctx.Done()
					return returned(ctx, l)
				})
				require.ErrorIs(t, err, mutex.ErrForced)
				require.Equal(t, 1, strings.Count(err.Error(), "is lost"), err)
			})
		})
	}
}

// The reason of a loss is not said again by the last error of a renewal.
func TestALossSaysItsReasonOnce(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
		c, _ := connect(mutex.KeepAlive(time.Hour))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true)
		require.EqualError(t, done(t, l.Context(t.Context())), `lock "a" is lost: etcd is out of space (etcdserver: mvcc: database space exceeded)`)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrNoSpace)
	})
}

func TestErrorsSayWhatIsKnown(t *testing.T) {
	other, cause := mutex.Holder{UUID: "4f2a"}, errors.New("cause")
	for want, err := range map[string]error{
		`lock "a" is lost: removed by force`:                      &mutex.LostError{Name: "a", Reason: mutex.ErrForced},
		`lock "a" is lost: taken by another: uuid "4f2a"`:         &mutex.LostError{Name: "a", Reason: mutex.ErrTaken, Holder: other},
		`lock "a" is lost: not renewed in time: cause`:            &mutex.LostError{Name: "a", Reason: mutex.ErrDeadline, Err: cause},
		`lock "a" is held by uuid "4f2a"`:                         &mutex.HeldError{Name: "a", Holder: other},
		`lock "a" is held by uuid "4f2a": cause`:                  &mutex.HeldError{Name: "a", Slots: 1, Holder: other, Err: cause},
		`the 2 slots of "a" are held, one of them by uuid "4f2a"`: &mutex.HeldError{Name: "a", Slots: 2, Holder: other},
		`lock "a" has other waiters: cause`:                       &mutex.HeldError{Name: "a", Slots: 2, Err: cause},
	} {
		require.EqualError(t, err, want)
		require.Equal(t, strings.HasSuffix(want, "cause"), errors.Is(err, cause))
	}
}

// Of several errors the first is said in full.
func TestSeveralErrors(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		link.Allow("/mutexes/a/", "/mutexes/a0")
		locks, held, err := c.TryLockAll(t.Context(), []string{"b", "a", "c", "d"})
		require.EqualError(t, err, `mutex: lock "b": etcdserver: permission denied (and 2 others)`)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.Empty(t, held)
		require.Len(t, locks, 1)
		require.NoError(t, c.UnlockAll(t.Context(), locks...))
	})
}

func TestHolderWithoutAName(t *testing.T) {
	h := mutex.Holder{UUID: "4f2a", AutoUnlockAt: time.Unix(1e9, 0).UTC()}
	require.Equal(t, `uuid "4f2a" until 2001-09-09T01:46:40Z`, h.String())
}
