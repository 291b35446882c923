//go:build go1.25

package otel_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
	mutexotel "github.com/etcd-unlocker/unlocker/mutex/otel"
)

func Example() {
	observe, err := mutexotel.Observer(otel.Meter("billing"))
	if err != nil {
		fmt.Println(err)
		return
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = etcd.Close() }()
	client, err := mutex.New(etcd, mutex.Observe(observe)) // for all locks of this client
	fmt.Println(client != nil, err)
	// Output: true <nil>
}

func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
		observe, err := mutexotel.Observer(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"))
		require.NoError(t, err)
		e := mutextest.New(t)
		other, err := e.Client().Lock(t.Context(), "a")
		require.NoError(t, err)
		time.AfterFunc(10*time.Second, func() { _ = other.Unlock(t.Context()) })
		ctx, span := trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
		l, err := e.Client(mutex.Observe(observe), mutex.KeepAlive(time.Hour)).Lock(ctx, "a")
		require.NoError(t, err)
		span.End()
		<-time.After(100 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))

		var data metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &data))
		events, sums := map[string]int64{}, map[string]float64{}
		for _, m := range data.ScopeMetrics[0].Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					kind, _ := p.Attributes.Value("event")
					events[kind.AsString()] = p.Value
				}
			case metricdata.Histogram[float64]:
				require.Len(t, d.DataPoints, 1)
				require.LessOrEqual(t, d.DataPoints[0].Bounds[1], .2, "those by default are for milliseconds")
				sums[m.Name] = d.DataPoints[0].Sum
			}
		}
		require.Equal(t, map[string]int64{"waiting": 1, "taken": 1, "renewed": 2, "released": 1}, events)
		require.InDelta(t, 10, sums["mutex.wait.duration"], 1)
		require.InDelta(t, 100, sums["mutex.hold.duration"], 1)
		require.InDelta(t, 2*2./3, sums["mutex.renewal.margin"], .05)
		var names []string
		for _, e := range spans.Ended()[0].Events() {
			names = append(names, e.Name)
			require.Equal(t, []attribute.KeyValue{attribute.String("mutex.name", "a")}, e.Attributes)
		}
		require.Equal(t, []string{"mutex.waiting", "mutex.taken"}, names)
	})
}
