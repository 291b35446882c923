package metrics

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// BenchmarkScrape measures a scrape at the default limits, without the metrics of Go and gRPC.
func BenchmarkScrape(b *testing.B) {
	s := full()
	for i := range 500 {
		overdue := makeOverdue(fmt.Sprintf("billing/invoices/%d", i), fields{
			"locked_at": "1699999990", "alert_at": "1699999995.5", "auto_unlock_at": "1700000001",
			"hostname": fmt.Sprintf("worker-%d.example.com", i%50), "owner": "billing",
		})
		overdue.Rhythm = &api.Rhythm{RenewedAt: noon, Interval: 40}
		s.Table.Overdue = append(s.Table.Overdue, overdue)
		s.Forced = append(s.Forced, removal(fmt.Sprintf("billing/payments/%d", i), "worker-1.example.com", -i))
	}
	reg, _ := newRegistry(b, always(s), 500)
	b.ReportAllocs()
	var text bytes.Buffer
	for b.Loop() {
		families, err := reg.Gather()
		require.NoError(b, err)
		text.Reset()
		enc := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
		for _, f := range families {
			if err := enc.Encode(f); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(text.Len()), "B")
	b.ReportMetric(float64(strings.Count(text.String(), "\n")-strings.Count("\n"+text.String(), "\n#")), "series")
}
