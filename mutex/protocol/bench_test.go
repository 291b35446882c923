//go:build go1.25

package protocol

import "testing"

func benchmarkKeys() []KV {
	return []KV{
		{Field: FieldAlertAt, Value: []byte("1700000000"), Create: 5, Mod: 5},
		{Field: FieldAutoUnlockAt, Value: []byte("1700000010"), Create: 5, Mod: 5},
		{Field: FieldHostname, Value: []byte("worker-17.example.com"), Create: 5, Mod: 5},
		{Field: FieldLockedAt, Value: []byte("1699999990"), Create: 5, Mod: 5},
		{Field: FieldUUID, Value: []byte(testUUID), Create: 5, Mod: 5},
	}
}

func BenchmarkBuilder(b *testing.B) {
	kvs := benchmarkKeys()
	var build Builder
	b.ReportAllocs()
	for b.Loop() {
		for _, kv := range kvs {
			build.Add(kv)
		}
		build.Lock("billing/invoices")
	}
}

func BenchmarkCollect(b *testing.B) {
	kvs := benchmarkKeys()
	b.ReportAllocs()
	for b.Loop() {
		collect("billing/invoices", kvs)
	}
}

func BenchmarkPutRenewal(b *testing.B) {
	l, rev := collect("billing/invoices", benchmarkKeys()), int64(5)
	renewal := []KV{
		{Field: FieldAlertAt, Value: []byte("1700000020"), Create: 5},
		{Field: FieldAliveAt, Value: []byte("1700000001.123456"), Create: 6},
		{Field: FieldAutoUnlockAt, Value: []byte("1700000030.123456"), Create: 5},
	}
	b.ReportAllocs()
	for b.Loop() {
		rev++
		for _, kv := range renewal {
			kv.Mod = rev
			l.Put(kv)
		}
	}
}
