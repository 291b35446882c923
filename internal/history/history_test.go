package history

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// heldBy has fields of a lock, with seconds after start as their times.
func heldBy(since, until int64, uuid string, times map[protocol.Field]int) api.Period {
	var b protocol.Builder
	b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte(uuid), Create: since, Mod: since})
	for f, t := range times {
		b.Add(protocol.KV{Field: f, Value: []byte(protocol.TimestampOf(at(t)).String()), Create: since, Mod: since})
	}
	p := period(b.Lock("a"), since)
	if until != 0 {
		p.Ended = &api.Ended{Moment: api.Moment{Revision: until}}
	}
	return p
}

func held(locked, alive, deadline int) map[protocol.Field]int {
	times := map[protocol.Field]int{protocol.FieldLockedAt: locked, protocol.FieldAutoUnlockAt: deadline}
	if alive != 0 {
		times[protocol.FieldAliveAt] = alive
	}
	return times
}

// How a period ended follows from its times, those of the next holder, and who knows more.
func TestHowAPeriodEnded(t *testing.T) {
	const until = 20
	forced := func(f api.Forced) []api.Forced {
		f.UUID = "u"
		return []api.Forced{f}
	}
	for name, c := range map[string]struct {
		times       map[protocol.Field]int
		overwritten bool
		next        int // when the next holder took it; 0 if none did
		now         int
		known       []api.Forced
		how         string
		after       int
		before      int // 0: none
		at          int // 0: not known
	}{
		"next holder before the deadline":     {times: held(0, 0, 60), next: 50, now: 500, how: api.EndReleased, before: 50},
		"at the deadline":                     {times: held(0, 0, 60), next: 60, now: 500, how: api.EndReleased, before: 60},
		"deadline not reached yet":            {times: held(0, 0, 60), now: 59, how: api.EndReleased, before: 59},
		"next holder after the deadline":      {times: held(0, 0, 60), next: 61, now: 500, how: api.EndRemoved, before: 61},
		"nobody since":                        {times: held(0, 30, 60), now: 500, how: api.EndRemoved, after: 30, before: 500},
		"renewed after its deadline":          {times: held(0, 70, 60), now: 500, how: api.EndLate, after: 70, before: 500},
		"without a deadline":                  {times: map[protocol.Field]int{protocol.FieldLockedAt: 1}, now: 500, how: api.EndReleased, after: 1, before: 500},
		"the next holder's clock is behind":   {times: held(40, 50, 60), next: 10, now: 500, how: api.EndRemoved, after: 50},
		"overwritten":                         {times: held(0, 0, 60), overwritten: true, next: 20, now: 500, how: api.EndOverwritten, before: 20},
		"expired":                             {times: held(0, 0, 60), next: 90, now: 500, known: forced(api.Forced{Trigger: "expiry", Revision: until, At: at(62)}), how: api.EndExpired, before: 90, at: 62},
		"seen by a listing only":              {times: held(0, 0, 60), now: 500, known: forced(api.Forced{Revision: 0, At: at(62)}), how: api.EndLate, before: 500, at: 62},
		"manual":                              {times: held(0, 0, 60), now: 500, known: forced(api.Forced{Trigger: "manual", Revision: until, At: at(10)}), how: api.EndManual, before: 500, at: 10},
		"manual, and seen by the daemon":      {times: held(0, 0, 60), now: 500, known: append(forced(api.Forced{Trigger: "manual", Revision: until, At: at(10)}), forced(api.Forced{Revision: until, At: at(70)})...), how: api.EndManual, before: 500, at: 10},
		"of another end":                      {times: held(0, 0, 60), now: 500, known: forced(api.Forced{Trigger: "expiry", Revision: until + 1, At: at(62)}), how: api.EndRemoved, before: 500},
		"of another etcd":                     {times: held(0, 0, 60), now: 500, known: []api.Forced{{UUID: "other", Trigger: "expiry", Revision: until, At: at(62)}}, how: api.EndRemoved, before: 500},
		"of leftovers with the same revision": {times: held(0, 0, 60), now: 500, known: forced(api.Forced{Trigger: "orphan", Revision: until, At: at(62)}), how: api.EndRemoved, before: 500},
	} {
		t.Run(name, func(t *testing.T) {
			ended := heldBy(10, until, "u", c.times)
			if c.overwritten {
				ended.Ended.How = api.EndOverwritten
			}
			h := api.History{Now: at(c.now), Periods: []api.Period{ended}}
			if c.next != 0 {
				h.Periods = append([]api.Period{heldBy(30, 0, "next", held(c.next, 0, 999))}, h.Periods...)
			}
			explain(&h)
			AddForced(&h, c.known)
			got := h.Periods[len(h.Periods)-1].Ended
			require.Equal(t, c.how, got.How)
			require.Equal(t, at(c.after), got.After)
			if c.before == 0 {
				require.Zero(t, got.Before)
			} else {
				require.Equal(t, at(c.before), got.Before)
			}
			if c.at == 0 {
				require.Zero(t, got.At)
			} else {
				require.Equal(t, at(c.at), got.At)
			}
		})
	}
}

// The margin of a renewal is that of a verdict.
func TestMarginsOfRenewals(t *testing.T) {
	w := newWorld(t)
	var want []int64
	w.acquire("u", 60)
	for _, times := range [][]string{
		{"alive_at", stamp(15), "auto_unlock_at", stamp(75)},
		{"alive_at", stamp(69), "auto_unlock_at", stamp(129)},
		{"auto_unlock_at", stamp(200)},
		{"alive_at", stamp(190), "auto_unlock_at", stamp(250)},
		{"alive_at", stamp(300), "auto_unlock_at", stamp(400)},
		{"alive_at", stamp(200), "auto_unlock_at", stamp(500)},
	} {
		want = append(want, w.Set("a", times...))
		w.Set("a", "answered_at", stamp(999), "stack", "goroutine 1", "status", "x") // an answer is no renewal
	}
	h := w.history(enough)
	require.Len(t, h.Periods, 1)
	require.Nil(t, h.Periods[0].Ended)
	slices.Reverse(h.Periods[0].Renewals)
	require.Equal(t, want, revisions(h.Periods[0].Renewals))
	require.Equal(t, at(15), h.Periods[0].Renewals[0].At)
	margins := make(map[int64]float64)
	for _, r := range h.Periods[0].Renewals {
		if r.Margin != nil {
			margins[r.Revision] = *r.Margin
		}
	}
	// The third has no alive_at: neither its margin nor that of what follows it is known. The fifth
	// is late, and the last by a clock that was set back.
	require.InDeltaMapValues(t, map[int64]float64{want[0]: 0.75, want[1]: 0.1, want[4]: 0, want[5]: 1}, margins, 1e-9)
}

// ends are how the periods ended.
func ends(h api.History) (all []string) {
	for _, p := range h.Periods {
		all = append(all, strings.TrimSpace(p.Ended.How+" "+p.Ended.Replica+p.Ended.Who+" "+p.Ended.Reason))
	}
	return all
}

// The record of a manual unlock is found after its lease has ended, and only if it was written with
// the deletion, of this lock.
func TestRecordsOfManualUnlocks(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	lease, err := w.Client.Grant(ctx, 600)
	require.NoError(t, err)
	record := func(token int64, name, uuid, prefix string) clientv3.Op {
		r := api.Forced{At: at(7), Name: name, UUID: uuid, Who: "ops@host", Reason: "why"}
		return clientv3.OpPut(protocol.RecordKey(w.AuditPrefix, "a", token), records.Encode(prefix, r), clientv3.WithLease(lease.ID))
	}
	end := func(ops ...clientv3.Op) {
		w.Put(append(ops, clientv3.OpDelete(w.Prefix+"a/", clientv3.WithPrefix()))...)
	}
	for _, written := range []func(token int64) clientv3.Op{
		func(token int64) clientv3.Op { return record(token, "b", "u-a", w.Prefix) },
		func(token int64) clientv3.Op { return record(token, "a", "u-b", w.Prefix) },
		func(token int64) clientv3.Op { return record(token, "a", "u-a", "/x/") },
		func(token int64) clientv3.Op {
			return clientv3.OpPut(protocol.RecordKey(w.AuditPrefix, "a", token), "{")
		},
		func(token int64) clientv3.Op { return record(token, "a", "u-a", w.Prefix) },
	} {
		end(written(w.acquire("u-a", 60)))
	}
	w.Put(record(w.acquire("u-a", 60), "a", "u-a", w.Prefix)) // too early
	end()
	_, err = w.Client.Revoke(ctx, lease.ID)
	require.NoError(t, err)

	h, err := w.Read(ctx, "a", enough)
	require.NoError(t, err)
	require.Empty(t, h.Incomplete)
	require.Equal(t, []string{"removed", "manual ops@host why", "released", "released", "released", "released"}, ends(h))
	require.Equal(t, at(7), h.Periods[1].Ended.At)
}

// The record of an automatic removal is written after it. As long as it stays, it tells of the removal also where
// etcd has compacted the lock.
func TestRecordsOfAutomaticRemovals(t *testing.T) {
	w := newWorldOn(t, etcdtest.Start(t, localetcd.Options{}))
	remove := func(token int64) {
		removed := w.Put(clientv3.OpDelete(w.Prefix+"a/", clientv3.WithPrefix()))
		r := api.Forced{
			At: at(62), Name: "a", UUID: "u", Token: token, Hostname: "h", Trigger: "expiry", Replica: "replica-1", Revision: removed,
			Fields: []api.Field{{Name: "uuid", Value: "u"}, {Name: "hostname", Value: "h"}, {Name: "auto_unlock_at", Value: stamp(60)}},
		}
		w.Put(clientv3.OpPut(protocol.RecordKey(w.AuditPrefix, "a", token), records.Encode(w.Prefix, r)))
	}
	first := w.acquire("u", 60)
	remove(first)
	second := w.acquire("u", 60)
	remove(second)
	require.Equal(t, []string{"expired replica-1", "expired replica-1"}, ends(w.history(enough)))

	third := w.acquire("u", 900)
	_, err := w.Client.Compact(t.Context(), third)
	require.NoError(t, err)
	h := w.history(enough)
	require.True(t, h.Compacted)
	var tokens []int64
	for _, p := range h.Periods {
		tokens = append(tokens, p.Token)
	}
	require.Equal(t, []int64{third, second, first}, tokens)
	require.Nil(t, h.Periods[0].Ended)
	old := h.Periods[2]
	require.Equal(t, []any{"u", "h", at(60), api.EndExpired, at(62), "replica-1"},
		[]any{old.UUID, old.Hostname, old.AutoUnlockAt, old.Ended.How, old.Ended.At, old.Ended.Replica})
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	w.acquire("u", 60)
	w.release()
	w.afterRead = func(_ context.Context, r *etcdserverpb.TxnRequest) error {
		if strings.HasPrefix(string(r.Success[0].GetRequestRange().Key), w.AuditPrefix) {
			return rpctypes.ErrGRPCPermissionDenied
		}
		return nil
	}
	w.ExplainAudit = func(error) error { return errors.New(strings.Repeat("x", 10_000)) }
	h := w.history(enough)
	require.Len(t, h.Periods, 1)
	require.Contains(t, h.Incomplete, "the records of removals could not be read: xxx")
	require.Less(t, len(h.Incomplete), 1000)
}
