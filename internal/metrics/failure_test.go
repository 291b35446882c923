package metrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
)

func scrape(t *testing.T, s Source) *httptest.ResponseRecorder {
	t.Helper()
	reg := prometheus.NewRegistry()
	require.NoError(t, Register(reg, New(s, 1), NewHistograms()))
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return rec
}

// A partial answer would resolve alerts: see the package comment.
func TestScrapeWithoutSnapshotFails(t *testing.T) {
	var none *Snapshot
	for want, s := range map[string]source{
		"table is stopped":        func(context.Context) (Snapshot, error) { return full(), errors.New("table is stopped") },
		"nil pointer dereference": func(context.Context) (Snapshot, error) { return *none, nil },
	} {
		t.Run(want, func(t *testing.T) {
			rec := scrape(t, s)
			require.Equal(t, http.StatusInternalServerError, rec.Code)
			require.Contains(t, rec.Body.String(), want)
			require.NotContains(t, rec.Body.String(), "\nunlocker_locks")
		})
	}
}

func TestSnapshotTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		rec := scrape(t, source(func(ctx context.Context) (Snapshot, error) {
			<-ctx.Done()
			return Snapshot{}, ctx.Err()
		}))
		require.Equal(t, snapshotTimeout, time.Since(start))
		require.Equal(t, http.StatusInternalServerError, rec.Code)
		require.Contains(t, rec.Body.String(), "taking a snapshot for the scrape, timeout 5s: context deadline exceeded")
	})
}

// A failed scrape does not affect the next one.
func TestScrapeRecovers(t *testing.T) {
	var calls atomic.Int32
	s := source(func(context.Context) (Snapshot, error) {
		if calls.Add(1) == 1 {
			return Snapshot{}, errors.New("not yet")
		}
		return full(), nil
	})
	require.Equal(t, http.StatusInternalServerError, scrape(t, s).Code)
	rec := scrape(t, s)
	require.Equal(t, http.StatusOK, rec.Code)
	require.Contains(t, rec.Body.String(), "\nunlocker_locks{state=\"held\"} 5\n")
}

// Each scrape takes one snapshot, and all its values are from that snapshot.
func TestConcurrentScrapes(t *testing.T) {
	var calls atomic.Uint64
	reg, h := newRegistry(t, source(func(context.Context) (Snapshot, error) {
		n := calls.Add(1)
		s := full()
		s.Table.Acquired, s.Table.Renewed, s.Reaper.Would = n, n, n
		return s, nil
	}), 500)
	const scrapes = 40
	seen := make([]float64, scrapes)
	var wg sync.WaitGroup
	for i := range scrapes {
		wg.Go(func() {
			h.LockHoldDuration.Observe(float64(i))
			families, err := reg.Gather()
			if err != nil {
				return
			}
			values := map[string]float64{}
			for _, f := range families {
				values[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
			}
			taken, renewed, would := values["unlocker_lock_acquisitions_total"], values["unlocker_lock_renewals_total"], values["unlocker_would_unlock_total"]
			if taken == renewed && renewed == would {
				seen[i] = would
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, scrapes, calls.Load())
	want := make([]float64, scrapes)
	for i := range want {
		want[i] = float64(i + 1)
	}
	require.ElementsMatch(t, want, seen)
}
