package history

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// start is when the locks of these tests are taken first.
var start = time.Unix(1_700_000_000, 0).UTC()

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// heldBy has fields of a lock, with seconds after start as their times.
func heldBy(since, until int64, uuid string, times map[protocol.Field]int) lockstore.Period {
	var b protocol.Builder
	b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte(uuid), Create: since, Mod: since})
	for f, t := range times {
		b.Add(protocol.KV{Field: f, Value: []byte(protocol.TimestampOf(at(t)).String()), Create: since, Mod: since})
	}
	return lockstore.Period{Lock: b.Lock("a"), Since: since, Until: until}
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
			ended.Overwritten = c.overwritten
			past := lockstore.Past{Periods: []lockstore.Period{ended}}
			if c.next != 0 {
				past.Periods = append([]lockstore.Period{heldBy(30, 0, "next", held(c.next, 0, 999))}, past.Periods...)
			}
			h := tell("a", past, at(c.now))
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

// world is a Reader on a real etcd.
type world struct {
	Reader
	*etcdtest.Etcd
}

func newWorld(t *testing.T) world {
	t.Helper()
	e := etcdtest.Start(t, localetcd.Options{})
	layout, err := protocol.NewLayout(e.Prefix)
	require.NoError(t, err)
	return world{Reader{
		Store:       lockstore.Store{KV: e.Client, Layout: layout, RequestTimeout: time.Minute},
		AuditPrefix: "/audit/", ExplainAudit: func(err error) error { return err },
	}, e}
}

var bounds = lockstore.Bounds{Periods: 10, Renewals: 10, Time: time.Minute}

// The margin of a renewal is that of a verdict.
func TestMarginsOfRenewals(t *testing.T) {
	w := newWorld(t)
	var want []int64
	w.Put(w.Lock("a", at(60), at(60), "locked_at", etcdtest.Stamp(at(0)))...)
	for _, times := range [][]string{
		{"alive_at", etcdtest.Stamp(at(15)), "auto_unlock_at", etcdtest.Stamp(at(75))},
		{"alive_at", etcdtest.Stamp(at(69)), "auto_unlock_at", etcdtest.Stamp(at(129))},
		{"auto_unlock_at", etcdtest.Stamp(at(200))},
		{"alive_at", etcdtest.Stamp(at(190)), "auto_unlock_at", etcdtest.Stamp(at(250))},
		{"alive_at", etcdtest.Stamp(at(300)), "auto_unlock_at", etcdtest.Stamp(at(400))},
		{"alive_at", etcdtest.Stamp(at(200)), "auto_unlock_at", etcdtest.Stamp(at(500))},
	} {
		var ops []clientv3.Op
		for i := 0; i < len(times); i += 2 {
			ops = append(ops, clientv3.OpPut(w.Prefix+"a/"+times[i], times[i+1]))
		}
		want = append(want, w.Put(ops...))
	}
	h, err := w.Read(t.Context(), "a", bounds)
	require.NoError(t, err)
	require.Len(t, h.Periods, 1)
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

// The record of a manual unlock is found after its lease has ended, and only if it was written with
// the deletion, of this lock.
func TestRecordsOfManualUnlocks(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	lease, err := w.Client.Grant(ctx, 600)
	require.NoError(t, err)
	record := func(key, name, uuid, prefix string) clientv3.Op {
		r := records.Record{Prefix: prefix, When: at(7), Forced: api.Forced{Name: name, UUID: uuid, Who: "ops@host", Reason: "why " + key}}
		return clientv3.OpPut("/audit/"+key, r.Encode(), clientv3.WithLease(lease.ID))
	}
	take := func() { w.Put(w.Lock("a", at(60), at(60), "locked_at", etcdtest.Stamp(at(0)))...) }
	end := func(ops ...clientv3.Op) {
		_, err := w.Client.Txn(ctx).Then(append(ops, clientv3.OpDelete(w.Prefix+"a/", clientv3.WithPrefix()))...).Commit()
		require.NoError(t, err)
	}
	for _, ops := range [][]clientv3.Op{
		{record("other lock", "b", "u-a", w.Prefix), record("other uuid", "a", "u-b", w.Prefix), record("other prefix", "a", "u-a", "/x/")},
		{clientv3.OpPut("/audit/broken", "{")},
		{record("good", "a", "u-a", w.Prefix)},
	} {
		take()
		end(ops...)
	}
	take()
	w.Put(record("too early", "a", "u-a", w.Prefix))
	end()
	_, err = w.Client.Revoke(ctx, lease.ID)
	require.NoError(t, err)

	h, err := w.Read(ctx, "a", bounds)
	require.NoError(t, err)
	require.Empty(t, h.Incomplete)
	var got []string
	for _, p := range h.Periods {
		got = append(got, p.Ended.How+" "+p.Ended.Who+" "+p.Ended.Reason)
	}
	require.Equal(t, []string{"removed  ", "manual ops@host why good", "released  ", "released  "}, got)
	require.Equal(t, at(7), h.Periods[1].Ended.At)
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	w.Put(w.Lock("a", at(60), at(60), "locked_at", etcdtest.Stamp(at(0)))...)
	_, err := w.Client.Delete(t.Context(), w.Prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	w.AuditPrefix = "" // a range that etcd refuses
	w.ExplainAudit = func(error) error { return errors.New(strings.Repeat("x", 10_000)) }
	h, err := w.Read(t.Context(), "a", bounds)
	require.NoError(t, err)
	require.Len(t, h.Periods, 1)
	require.Contains(t, h.Incomplete, "the records of manual unlocks could not be read: xxx")
	require.Less(t, len(h.Incomplete), 1000)
}
