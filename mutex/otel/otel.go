// Package otel records the events of the locks of package mutex as metrics of OpenTelemetry, and in the spans
// of the calls that lock.
package otel

import (
	"cmp"
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcd-unlocker/unlocker/mutex"
)

// Observer returns the function for mutex.Observe that records. Spans get the events of the kinds waiting and taken,
// with the name of the lock. The attributes of metrics have no names, of which there may be any number.
func Observer(meter metric.Meter) (func(mutex.Event), error) {
	seconds := metric.WithExplicitBucketBoundaries(.001, .004, .016, .064, .256, 1, 4, 16, 64, 256, 1024, 4096)
	events, err1 := meter.Int64Counter("mutex.events", metric.WithDescription("Events of locks, by kind."))
	wait, err2 := meter.Float64Histogram("mutex.wait.duration", metric.WithUnit("s"), seconds, metric.WithDescription("How long calls waited for the locks that they took."))
	hold, err3 := meter.Float64Histogram("mutex.hold.duration", metric.WithUnit("s"), seconds, metric.WithDescription("How long locks were held that were released or lost."))
	margin, err4 := meter.Float64Histogram("mutex.renewal.margin", metric.WithUnit("1"), metric.WithDescription("Share of the patience that was left at renewals."),
		metric.WithExplicitBucketBoundaries(.1, .2, .3, .4, .5, .6, .7, .8, .9))
	return func(e mutex.Event) {
		ctx := cmp.Or(e.Context, context.Background())
		events.Add(ctx, 1, metric.WithAttributes(attribute.String("event", string(e.Kind))))
		switch e.Kind {
		case mutex.EventTaken:
			wait.Record(ctx, e.Took.Seconds())
		case mutex.EventLost, mutex.EventReleased:
			hold.Record(ctx, e.Took.Seconds())
		case mutex.EventRenewed:
			margin.Record(ctx, e.Margin)
		}
		trace.SpanFromContext(ctx).AddEvent("mutex."+string(e.Kind), trace.WithAttributes(attribute.String("mutex.name", e.Name)))
	}, errors.Join(err1, err2, err3, err4)
}
