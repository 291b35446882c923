package table

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// running is a table that runs in a bubble, with its etcd.
type running struct {
	*etcd
	*Table
	t *testing.T
}

func run(t *testing.T, f func(*testing.T, context.Context, *running)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		table, err := New(w.options())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- table.Run(ctx) }()
		f(t, ctx, &running{etcd: w.etcd, Table: table, t: t})
		cancel()
		require.NoError(t, <-ended)
		_, err = table.Take(t.Context(), 1)
		require.ErrorIs(t, err, ErrStopped)
		require.ErrorIs(t, table.Apply(t.Context(), nil, true), ErrStopped)
	})
}

func (r *running) acquire(name string, alert, auto time.Duration) (token int64) {
	require.NoError(r.t, r.Apply(r.t.Context(), r.put(name, fields(alert, auto)), true))
	return r.token(name)
}

// within waits at most d for locks that are due.
func (r *running) within(d time.Duration) []Due { return r.batch(d).Due }

func (r *running) batch(d time.Duration) Batch {
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	got, err := r.Take(ctx, 10)
	if err != nil {
		require.ErrorIs(r.t, err, context.DeadlineExceeded)
	}
	return got
}

func TestNewRefusesMissingOptions(t *testing.T) {
	_, err := New(Options{})
	require.EqualError(t, err, "lock table: DueIn, HoldDuration and OrphanGrace are required")
}

func TestTakeWaitsUntilDueAndReturnsALockOnce(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		r.acquire("a", time.Second, 5*time.Second)
		start := time.Now()
		got, err := r.Take(ctx, 10)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second+grace, time.Since(start), "to the nanosecond")
		require.Len(t, got.Due, 1)
		require.Equal(t, "a", got.Due[0].Name)
		require.Zero(t, got.Due[0].Attempts)
		require.Empty(t, r.within(time.Hour))
	})
}

func TestPostponeCountsAttemptsUntilTheLockIsModified(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		token := r.acquire("a", 0, 0)
		for attempt := range 3 {
			got := r.within(time.Minute)
			require.Len(t, got, 1)
			require.Equal(t, attempt, got[0].Attempts)
			require.NoError(t, r.Postpone(ctx, "a", token, 10*time.Second))
			require.Empty(t, r.within(10*time.Second-1))
		}
		require.NoError(t, r.Apply(ctx, r.put("a", map[string]string{"purpose": "x"}), true))
		s, err := r.Stats(ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 1, s.Backlog, "due and still there")
		require.Zero(t, r.within(time.Minute)[0].Attempts)
		require.NoError(t, r.Postpone(ctx, "a", token, -time.Second))
		require.Len(t, r.within(0+1), 1, "a negative delay is none, but for UntilModified")
	})
}

func TestPostponeAfterAModificationIsIgnored(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		token := r.acquire("a", 0, 0)
		require.Len(t, r.within(time.Minute), 1)
		require.NoError(t, r.Apply(ctx, r.put("a", map[string]string{"auto_unlock_at": at(time.Second)}), true))
		require.NoError(t, r.Postpone(ctx, "a", token, UntilModified))
		got := r.within(time.Minute)
		require.Len(t, got, 1)
		require.Zero(t, got[0].Attempts)
		require.NoError(t, r.Postpone(ctx, "a", token+99, UntilModified), "another's token")
		require.NoError(t, r.Postpone(ctx, "b", token, UntilModified), "another's name")
		require.NoError(t, r.Postpone(ctx, "a", token, 0))
		require.Len(t, r.within(1), 1)
	})
}

func TestSuspendedUntilModified(t *testing.T) {
	for field, value := range map[string]func() string{
		"purpose":        func() string { return "x" },
		"auto_unlock_at": func() string { return at(0) },
	} {
		run(t, func(t *testing.T, ctx context.Context, r *running) {
			token := r.acquire("a", 0, 0)
			require.Len(t, r.within(time.Minute), 1)
			require.NoError(t, r.Postpone(ctx, "a", token, UntilModified))
			require.Empty(t, r.within(24*time.Hour))
			s, err := r.Stats(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, 1, s.Backlog)
			require.Equal(t, 1, s.Locks[lock.Expired])
			item, found, err := r.Get(ctx, "a")
			require.NoError(t, err)
			require.True(t, found)
			require.Zero(t, item.Due, "never")
			require.NoError(t, r.Apply(ctx, r.put("a", map[string]string{field: value()}), true))
			require.Len(t, r.within(time.Minute), 1, field)
		})
	}
}

func TestGoneReportsOnceWithTokenAndRevision(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		token := r.acquire("a", 0, 0)
		require.Len(t, r.within(time.Minute), 1)
		require.NoError(t, r.Apply(ctx, r.del("a"), true))
		seen := present().UTC()
		require.NoError(t, r.Postpone(ctx, "a", token, 0), "too late")
		require.Equal(t, []Gone{{Name: "a", Token: token, Revision: r.rev, At: seen}}, <-r.Gone())
		select {
		case again := <-r.Gone():
			require.Fail(t, "told twice", again)
		case <-time.After(time.Minute):
		}
		s, err := r.Stats(ctx, 0)
		require.NoError(t, err)
		require.Zero(t, s.Released)
		require.Zero(t, s.Backlog)
	})
}

func TestGoneIsKeptWhileNobodyReads(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		r.acquire("a", 0, 0)
		r.acquire("b", 0, 0)
		time.Sleep(grace)
		require.Len(t, r.within(1), 2)
		require.NoError(t, r.Apply(ctx, append(r.del("a"), r.del("b")...), true))
		require.NoError(t, r.Apply(ctx, nil, true))
		require.Len(t, <-r.Gone(), 2)
	})
}

func TestCanceledTakeLosesNothing(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		r.acquire("a", 0, 0)
		// Its end and the lock's due come at the same instant.
		for range 50 {
			got := r.within(grace)
			for _, l := range got {
				require.Zero(t, l.Attempts, "a Take that got nothing is no attempt")
			}
			if len(got) == 0 {
				got = r.within(1)
			}
			require.Len(t, got, 1)
			require.NoError(t, r.Apply(ctx, r.put("a", map[string]string{"auto_unlock_at": at(0)}), true))
		}
		require.Len(t, r.within(time.Minute), 1)
		require.Empty(t, r.within(1))
	})
}

// A taker that left after it had been given a lock puts it back.
func TestCanceledTakerPutsBack(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		r.acquire("a", -time.Hour, -time.Hour)
		left := &taker{limit: 1, got: make(chan Batch, 1)}
		require.NoError(t, r.do(ctx, func(*core) { r.takers = append(r.takers, left) }))
		synctest.Wait()
		require.Len(t, left.got, 1)
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, r.withdraw(canceled, left), context.Canceled)
		got := r.within(1)
		require.Len(t, got, 1)
		require.Zero(t, got[0].Attempts)
	})
}

func TestTakersAreServedInOrder(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		first, second := make(chan Batch, 1), make(chan Batch, 1)
		for _, got := range []chan Batch{first, second} {
			go func() {
				batch, _ := r.Take(ctx, 1)
				got <- batch
			}()
			synctest.Wait()
		}
		r.acquire("a", 0, 0)
		r.acquire("b", 0, time.Second)
		require.Equal(t, "a", (<-first).Due[0].Name)
		require.Equal(t, "b", (<-second).Due[0].Name)
	})
}
