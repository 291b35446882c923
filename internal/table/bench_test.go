package table

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const manyLocks = 200_000

// fill lists n locks with names of 20 bytes, five keys each, on a few hosts, of
// which the first are overdue.
func fill(c *core, n, overdue int) {
	c.begin(int64(n)+1, false)
	for i := range n {
		alert := time.Hour
		if i < overdue {
			alert = -time.Duration(i+1) * time.Second
		}
		rev := int64(i + 1)
		var b protocol.Builder
		for f, v := range map[protocol.Field]string{
			protocol.FieldUUID:         fmt.Sprintf("%08x-0000-4000-8000-0123456789ab", i),
			protocol.FieldHostname:     fmt.Sprintf("host-%d.example.org", i%20),
			protocol.FieldLockedAt:     at(-time.Minute),
			protocol.FieldAlertAt:      at(alert),
			protocol.FieldAutoUnlockAt: at(2*time.Hour + time.Duration(i)*time.Millisecond),
		} {
			b.Add(protocol.KV{Field: f, Value: []byte(v), Create: rev, Mod: rev})
		}
		_ = c.list([]protocol.Lock{b.Lock(fmt.Sprintf("batch/job-%010d", i))})
	}
	c.end()
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what unique's and pools' finalisation left
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// alone is the core of a table that does not run.
func alone(t require.TestingT) *core {
	table, err := New(Options{
		Rules:        verdict.Rules{Reaper: config.Reaper{Mode: verdict.Enforce, Grace: grace, ClockTolerance: tolerance, OrphanGrace: orphanGrace}},
		Allowance:    (&outages{}).allowance,
		Raw:          Raw(),
		HoldDuration: &observed{}, RenewalMargin: &observed{}, Now: present,
	})
	require.NoError(t, err)
	return table.core
}

func bytesPerLock(t require.TestingT) float64 {
	before := liveHeap()
	c := alone(t)
	fill(c, manyLocks, 0)
	after := liveHeap()
	require.Equal(t, manyLocks, c.counts[protocol.Held])
	runtime.KeepAlive(c)
	return float64(after-before) / manyLocks
}

func TestMemoryPerLock(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(entry{}), uintptr(176), "the next size class is 192")
	require.LessOrEqual(t, bytesPerLock(t), 256.0)
}

func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(bytesPerLock(b), "B/lock")
	}
}

// BenchmarkRenewal applies the events of one renewal, of one lock after another.
func BenchmarkRenewal(b *testing.B) {
	c := alone(b)
	fill(c, manyLocks, 0)
	var events [2]Event
	b.ReportAllocs()
	rev := int64(manyLocks) + 1
	for i := 0; b.Loop(); i++ {
		rev++
		created := int64(i%manyLocks) + 1
		name := fmt.Appendf(nil, "batch/job-%010d", created-1)
		events[0] = Event{Name: name, KV: protocol.KV{Field: protocol.FieldAliveAt, Value: []byte(at(0)), Create: created, Mod: rev}}
		events[1] = Event{Name: name, KV: protocol.KV{Field: protocol.FieldAutoUnlockAt, Value: []byte(at(time.Hour)), Create: created, Mod: rev}}
		c.apply(events[:], true)
	}
}

func BenchmarkStats(b *testing.B) {
	for _, overdue := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("overdue=%d", overdue), func(b *testing.B) {
			c := alone(b)
			fill(c, manyLocks, overdue)
			b.ReportAllocs()
			for b.Loop() {
				c.stats(500)
			}
		})
	}
}

// BenchmarkPages makes pages of 100 locks for several queries in one scan.
func BenchmarkPages(b *testing.B) {
	c := alone(b)
	fill(c, manyLocks, 1000)
	for _, n := range []int{1, 32} {
		for _, byUrgency := range []bool{false, true} {
			b.Run(fmt.Sprintf("queries=%d/urgency=%v", n, byUrgency), func(b *testing.B) {
				for b.Loop() {
					found := make([]selection, n)
					for i := range found {
						found[i] = selected(b, api.Query{ByUrgency: byUrgency, Hostname: fmt.Sprintf("host-%d.example.org", i), Limit: 100})
					}
					for batch := range c.batches(n) {
						c.offer(batch, found, c.clock.read())
						for i := range found {
							found[i].trim()
						}
					}
				}
			})
		}
	}
}
