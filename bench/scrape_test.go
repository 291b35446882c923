package bench

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkScrape scrapes a daemon with 200,000 locks.
func BenchmarkScrape(b *testing.B) {
	const locks, overdue = 200_000, 10_000
	for _, tc := range []struct {
		name    string
		overdue int
	}{{"none-overdue", 0}, {"10000-overdue", overdue}} {
		b.Run(tc.name, func(b *testing.B) {
			e := newEtcd(b)
			future := time.Now().Add(time.Hour)
			putLocks(e, locks, future, future)
			if tc.overdue > 0 {
				putLocks(e, tc.overdue, time.Now(), future)
			}
			a, stop := startDaemon(b, e, nil)
			defer stop()
			url := fmt.Sprintf("http://%s/metrics", a.OpsAddr())
			scrape(b, url)
			b.ResetTimer()
			for range b.N {
				scrape(b, url)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/scrape")
		})
	}
}

func scrape(b *testing.B, url string) {
	resp, err := http.Get(url)
	require.NoError(b, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(b, err)
	require.NoError(b, resp.Body.Close())
	require.Equal(b, http.StatusOK, resp.StatusCode)
}
