package table

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

func TestStatsListTheLongestOverdueFirstUpToTheLimit(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		for i := range 20 {
			r.acquire(fmt.Sprint(i), -time.Duration((i*7)%20+1)*time.Second, time.Hour)
		}
		r.acquire("held", time.Minute, time.Hour)
		s, err := r.Stats(ctx, 3)
		require.NoError(t, err)
		require.Equal(t, 20, s.OverdueTotal)
		require.Equal(t, [lock.NumStates]int{lock.Held: 1, lock.Overdue: 20}, s.Locks)
		require.Len(t, s.Overdue, 3)
		for i, l := range s.Overdue {
			require.Equal(t, present().Add(-time.Duration(20-i)*time.Second).UTC(), l.AlertAt().Time())
		}
		s, err = r.Stats(ctx, 100)
		require.NoError(t, err)
		require.Len(t, s.Overdue, 20)
		s, err = r.Stats(ctx, 0)
		require.NoError(t, err)
		require.Empty(t, s.Overdue)
		time.Sleep(time.Minute)
		s, err = r.Stats(ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 21, s.OverdueTotal, "as of now, not of the last event")
	})
}

func TestPageWalksAllLocksInOrder(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		for i := range 300 {
			r.acquire(fmt.Sprintf("%03d", (i*77)%300), time.Minute, time.Hour)
		}
		var walked []string
		q := Query{Limit: 7}
		for more := true; more; {
			var items []Item
			var err error
			items, more, err = r.Page(ctx, q)
			require.NoError(t, err)
			for _, it := range items {
				walked = append(walked, it.Name)
			}
			require.Equal(t, more, len(walked) < 300)
			q.After = walked[len(walked)-1]
		}
		require.Len(t, walked, 300)
		for i, name := range walked {
			require.Equal(t, fmt.Sprintf("%03d", i), name)
		}
	})
}

func TestPageFilters(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		r.acquire("billing/a", time.Minute, time.Hour)
		r.acquire("billing/b", -time.Minute, time.Hour)
		other := fields(-time.Minute, time.Hour)
		other["hostname"] = "h2"
		require.NoError(t, r.Apply(ctx, r.put("mail", other), true))
		for _, c := range []struct {
			query Query
			want  []string
		}{
			{Query{}, []string{"billing/a", "billing/b", "mail"}},
			{Query{States: []lock.State{lock.Overdue}}, []string{"billing/b", "mail"}},
			{Query{States: []lock.State{lock.Held, lock.Undated}}, []string{"billing/a"}},
			{Query{Contains: "ing/"}, []string{"billing/a", "billing/b"}},
			{Query{Hostname: "h2"}, []string{"mail"}},
			{Query{Hostname: "h"}, nil},
			{Query{After: "billing/a", Hostname: "h1"}, []string{"billing/b"}},
		} {
			c.query.Limit = 10
			items, more, err := r.Page(ctx, c.query)
			require.NoError(t, err)
			require.False(t, more)
			var names []string
			for _, it := range items {
				names = append(names, it.Name)
			}
			require.Equal(t, c.want, names, "%+v", c.query)
		}
	})
}

func TestGetReturnsStateAndDue(t *testing.T) {
	run(t, func(t *testing.T, ctx context.Context, r *running) {
		r.acquire("a", time.Minute, time.Hour)
		item, found, err := r.Get(ctx, "a")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, lock.Held, item.State)
		require.Equal(t, present().Add(time.Hour+grace).UTC(), item.Due)
		_, found, err = r.Get(ctx, "b")
		require.NoError(t, err)
		require.False(t, found)
	})
}
