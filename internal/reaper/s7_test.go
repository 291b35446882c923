package reaper_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestS7_TheRecordIsLoggedBeforeAndTheOutcomeAfter(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.expired("a", "b")
	h.set("a", "owner", "billing", "custom", "kept", "pid", "1")
	var before, after int
	h.before = func(context.Context) {
		before, after = len(h.log.with(t, api.LogRemoving, "")), len(h.log.with(t, api.LogRemoved, ""))
	}
	due := h.dues("a", "b")
	h.handle(due...)
	require.Equal(t, []int{2, 0}, []int{before, after})
	require.EqualValues(t, 1, h.sent.Load())

	line := h.log.one(t, api.LogRemoving, "a")
	require.Equal(t, map[string]any{"auto_unlock_at": expiry, "custom": "kept", "hostname": "host", "locked_at": expiry,
		"owner": "billing", "pid": "1", "purpose": "test", "uuid": "u-a"}, line.Record)
	var v map[string]any
	require.NoError(t, json.Unmarshal(line.Verdict, &v))
	require.Equal(t, "remove", v["action"])
	require.Equal(t, "expiry", v["trigger"])
	require.Equal(t, true, v["removable"])
	require.EqualValues(t, due[0].Revision, v["revision"])
	require.EqualValues(t, due[0].Token, v["token"])
	require.Equal(t, past.Format(time.RFC3339), v["auto_unlock_at"])
	outcome := h.log.one(t, api.LogRemoved, "a")
	require.EqualValues(t, 8, outcome.KeysDeleted)
	require.NotContains(t, outcome.text, `"error"`)
	require.Equal(t, "u-a", outcome.UUID)

	recent := h.Ledger().Recent(10)
	require.Len(t, recent, 2)
	require.Equal(t, "b", recent[0].Name, "the newest first")
	require.Equal(t, "a", recent[1].Name)
	require.Equal(t, "host", recent[1].Hostname)
	require.Equal(t, "billing", recent[1].Owner)
	require.Equal(t, outcome.Revision, recent[1].Revision)
	require.Equal(t, verdict.Remove, recent[1].Verdict.Action)
	require.Len(t, recent[1].Fields, 8)
}

// The bounds of docs/safety.md: fields, bytes of a value, bytes of a name, and what
// marks a cut.
const maxFields, maxValue, maxName, cut = 32, 2 << 10, 512, len("…")

func TestS7_WhatIsLoggedAndKeptIsBounded(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	hostile := "\xff\xfe\x00\x1b[31m\n\r\u2028\"}"
	name := "a" + strings.Repeat("n", 2_000)
	h.set(name, "uuid", strings.Repeat("\xff", 200), "auto_unlock_at", expiry, "hostname", hostile+strings.Repeat("h", 1_000),
		"owner", hostile, "backtrace", strings.Repeat("\xff", 1<<20))
	for i := range 500 {
		h.set(name, fmt.Sprintf("%03d%s", i, strings.Repeat("f\xff", 500)), strings.Repeat(hostile, 200))
	}
	h.set("b", "uuid", "u", "auto_unlock_at", expiry, hostile, hostile, "more_fields", "0")
	for i := range 60 {
		h.set("b", fmt.Sprint("x", i, hostile), strings.Repeat("\x01", 4_000))
	}
	h.remove(name)
	h.remove("b")
	require.Empty(t, h.keys())
	lines := append(h.log.with(t, api.LogRemoving, ""), h.log.with(t, api.LogRemoved, "")...)
	require.Len(t, lines, 4)
	for _, line := range lines {
		require.Less(t, len(line.text), 1<<20)
		require.True(t, utf8.ValidString(line.text))
	}
	require.EqualValues(t, 505-maxFields, lines[0].Record["more_fields"])
	for _, r := range h.Ledger().Recent(10) {
		require.LessOrEqual(t, len(r.Fields), maxFields)
		for _, s := range []string{r.Name, r.UUID, r.Hostname, r.Owner} {
			require.True(t, utf8.ValidString(s))
			require.LessOrEqual(t, len(s), maxValue+cut)
		}
		size := 0
		for _, f := range r.Fields {
			require.True(t, utf8.ValidString(f.Name) && utf8.ValidString(f.Value))
			require.LessOrEqual(t, len(f.Name), maxName+cut)
			require.LessOrEqual(t, len(f.Value), maxValue+cut)
			size += len(f.Name) + len(f.Value)
		}
		require.Less(t, size, 100<<10)
	}
	require.Equal(t, "auto_unlock_at", h.Ledger().Recent(1)[0].Fields[0].Name, "known fields come first")
}

// Names that are equal once clipped must not hide each other in a JSON object.
func TestS7_FieldsWithNamesThatLookTheSame(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.expired("a")
	long := strings.Repeat("x", maxName)
	h.set("a", long+"1", "value 1", long+"2", "value 2", "\xff", "value 3", "\xfe", "value 4")
	h.remove("a")
	line := fmt.Sprint(h.log.one(t, api.LogRemoving, "a").Record)
	for i := range 4 {
		require.Contains(t, line, fmt.Sprint("value ", i+1))
	}
}

// A big value, which makes the lock be read field by field, hides no other field.
func TestS7_UnknownFieldsOfALargeLock(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.expired("a")
	h.set("a", "backtrace", strings.Repeat("b", 64<<10), "ticket", "OPS-1", "z/nested/uuid", "u")
	h.remove("a")
	record := h.log.one(t, api.LogRemoving, "a").Record
	require.Equal(t, "OPS-1", record["ticket"])
	require.NotContains(t, record, "more_fields")
	require.Len(t, h.keys(), 1, "the nested name")
	require.Zero(t, h.Ledger().Recent(1)[0].MoreFields)
}

// proxied returns a harness whose reaper reaches etcd through a proxy. What it sends
// fails if it gets no answer for a while.
func proxied(t *testing.T, edits ...func(*reaper.Options)) (*harness, *localetcd.Proxy) {
	t.Helper()
	cluster, direct := newEtcd(t, localetcd.Options{})
	proxy, err := localetcd.NewProxy(cluster.Addr(0))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	client, err := cluster.Client(func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxy.Addr()} })
	require.NoError(t, err)
	h := newHarness(t, direct, edits...)
	h.KVClient, h.timeout = clientv3.RetryKVClient(client), 300*time.Millisecond
	return h, proxy
}

func TestS7_AnAmbiguousOutcomeIsCalledSo(t *testing.T) {
	t.Parallel()
	h, proxy := proxied(t)
	h.timeout = 5 * time.Second // enough for the transaction to arrive
	h.expired("a", "b")
	due := h.dues("a", "b")
	h.before = func(context.Context) { proxy.HoldReplies() } // once: a retry finds nothing to send
	h.handle(due...)
	h.await(func() bool { return len(h.keys()) == 0 })
	require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonAmbiguous: 2}, h.failures())
	require.Zero(t, h.removed())
	require.Zero(t, h.Stats().Conflicts)
	require.Len(t, h.log.with(t, api.LogAmbiguous, ""), 2)
	require.Empty(t, h.log.with(t, api.LogRemoved, ""))
	require.Empty(t, h.Ledger().Recent(10))
	require.Len(t, h.source.postponed(), 2)

	// The watch shows that they are gone, and one of them as the transaction would have deleted it.
	h.gone(table.Gone{Name: "a", Token: due[0].Token, Revision: 99, At: past.Add(5 * time.Second), Whole: true, Past: &due[0].Lock},
		table.Gone{Name: "b", Token: due[1].Token, Revision: 99, At: time.Now()})
	require.EqualValues(t, 2, h.Stats().ReleasedByOther)
	require.Zero(t, h.Stats().ReleasedBySelf)
	require.EqualValues(t, 1, h.Stats().Removed[verdict.Presumed])
	require.Len(t, h.delay.all(), 1)

	// A retry finds nothing.
	require.NoError(t, proxy.Heal())
	h.given++ // what is presumed counts as removed, and was put back
	h.handle(due...)
	require.Zero(t, h.Stats().Removed[verdict.Expiry])
	require.EqualValues(t, 2, h.Stats().Conflicts)
}

// A removal without an answer is counted and listed as presumed, once the watch shows that the lock vanished as the
// removal would have deleted it.
func TestS7_ARemovalWithoutAnAnswerIsPresumed(t *testing.T) {
	renewed := func(g *table.Gone) {
		l := *g.Past
		l.Revision++
		g.Past = &l
	}
	for name, c := range map[string]struct {
		edit       func(*table.Gone)
		eventFirst bool
		record     verdict.Trigger // what the record says that is there before
		late       time.Duration
		want       verdict.Trigger
	}{
		"vanished whole":                 {want: verdict.Presumed},
		"before the timeout":             {eventFirst: true, want: verdict.Presumed},
		"renewed, then released":         {edit: renewed},
		"without some of its keys":       {edit: func(g *table.Gone) { g.Whole = false }},
		"seen by a listing only":         {edit: func(g *table.Gone) { g.Whole, g.Revision = false, 0 }},
		"not past its deadline":          {edit: func(g *table.Gone) { g.Past = nil }},
		"another replica left a record":  {record: verdict.Expiry, want: verdict.Expiry},
		"a user left a record":           {record: verdict.Manual, want: verdict.Manual},
		"an hour later":                  {late: time.Hour, want: verdict.Presumed},
		"of another acquisition":         {edit: func(g *table.Gone) { g.Token++ }},
		"of a lock with a similar name":  {edit: func(g *table.Gone) { g.Name += "x" }},
		"renewed before the timeout too": {edit: renewed, eventFirst: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) { o.Store.RequestTimeout = 5 * time.Second })
				h.expired("a")
				d := h.due("a")
				g := table.Gone{Name: "a", Token: d.Token, Revision: d.Revision + 1, Whole: true, Past: &d.Lock, At: time.Now()}
				if c.edit != nil {
					c.edit(&g)
				}
				h.before = func(ctx context.Context) {
					if c.eventFirst {
						h.gone(g)
					}
					<-ctx.Done()
				}
				h.give(d)
				h.await(func() bool { return h.failures()[lockstore.ReasonAmbiguous] == 1 })
				<-time.After(c.late)
				if c.record != "" {
					h.Recorded(h.ctx, api.Forced{Name: "a", Token: d.Token, Trigger: c.record, At: time.Now()}, true, true)
				}
				if !c.eventFirst {
					h.gone(g)
				}
				synctest.Wait()
				presumed := 0
				if c.want == verdict.Presumed {
					presumed = 1
				}
				require.Equal(t, map[verdict.Trigger]uint64{verdict.Expiry: 0, verdict.Orphan: 0, verdict.Manual: 0, verdict.Presumed: uint64(presumed)}, h.Stats().Removed)
				require.Len(t, h.log.with(t, api.LogPresumed, "a"), presumed)
				listed := h.Ledger().Page("a", 10)
				if c.want == "" {
					require.Empty(t, h.Ledger().Recent(10), "nor is it in the metric of the alert")
				} else {
					require.Len(t, listed, 1)
					require.Equal(t, c.want, listed[0].Trigger)
					require.Len(t, h.Ledger().Recent(10), 1)
				}
				if presumed == 1 {
					require.Zero(t, h.Unanswered())
					require.Equal(t, []any{api.Self, g.Revision}, []any{listed[0].By, listed[0].Revision})
					require.NotNil(t, listed[0].Verdict)
					// The record decides, also if it comes later.
					h.Recorded(h.ctx, api.Forced{Name: "a", Token: d.Token, Trigger: verdict.Expiry, Replica: "other", At: time.Now()}, false, true)
					require.Len(t, h.Ledger().Page("a", 10), 1)
					require.Equal(t, "other", h.Ledger().Page("a", 10)[0].Replica)
				}
				requireOpen(h, 0)
			})
		})
	}
}

// The event comes while the answer is still waited for.
func TestS7_TheEventOfAnAmbiguousRemovalComesFirst(t *testing.T) {
	h, proxy := proxied(t)
	h.expired("a")
	d := h.due("a")
	h.before = func(context.Context) {
		proxy.HoldReplies()
		h.gone(table.Gone{Name: "a", Token: d.Token, Revision: 99, At: time.Now()})
	}
	h.handle(d)
	require.EqualValues(t, 1, h.Stats().ReleasedByOther)
	require.Zero(t, h.Stats().ReleasedBySelf)
	require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonAmbiguous: 1}, h.failures())
	require.Zero(t, h.removed())
	requireOpen(h, 0)
}

// An attempt without an answer is forgotten once another one has deleted the lock, or after an hour.
func TestS7_AttemptsWithoutAnAnswerAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) { o.Store.RequestTimeout = 5 * time.Second })
		h.expired("a", "b", "c")
		a, last := h.due("a"), time.Now()
		for i, after := range []time.Duration{time.Minute, time.Hour, time.Hour + 1} {
			<-time.After(time.Until(last.Add(after - 5*time.Second)))
			h.before = func(ctx context.Context) {
				<-ctx.Done()
				last = time.Now()
			}
			h.remove([]string{"a", "b", "c"}[i])
			synctest.Wait()
			require.Equal(t, []int{1, 2, 1}[i], h.Unanswered(), "an hour after the last one they are still known")
		}
		h.before = nil
		h.remove("c")
		c := h.Ledger().Recent(1)[0]
		h.gone(table.Gone{Name: "c", Token: c.Token, Revision: c.Revision, At: time.Now()})
		require.Zero(t, h.Unanswered())
		h.gone(table.Gone{Name: "a", Token: a.Token, Revision: 99, At: time.Now(), Whole: true, Past: &a.Lock})
		require.Zero(t, h.Stats().Removed[verdict.Presumed])
	})
}

// requireOpen requires how many removals wait for their event, and that none waits for
// its answer.
func requireOpen(h *harness, want int) {
	h.t.Helper()
	answered, others := h.Open()
	require.Equal(h.t, []int{want, 0}, []int{answered, others})
}

func TestS7_ARequestThatNeverArrivesIsAmbiguousToo(t *testing.T) {
	h, proxy := proxied(t)
	h.expired("a")
	h.before = func(context.Context) { proxy.Blackhole() }
	h.remove("a")
	require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonAmbiguous: 1}, h.failures())
	require.Len(t, h.keys(), 5)
	require.Zero(t, h.putBack())
}

// Where the read fails nothing was sent, and so nothing is ambiguous.
func TestS7_AReadThatFailsIsNotAmbiguous(t *testing.T) {
	h, proxy := proxied(t, func(o *reaper.Options) { o.Store.RequestTimeout = 300 * time.Millisecond })
	h.expired("a", "b")
	proxy.Blackhole()
	h.remove("a", "b")
	require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonUnreadable: 2}, h.failures())
	lines := h.log.with(t, api.LogCannotRead, "")
	require.Len(t, lines, 2, "each alone")
	require.Equal(t, string(lockstore.ReasonUnreadable), lines[0].Reason)
	require.Contains(t, lines[0].text, `"error":"`)
	require.Len(t, h.source.postponed(), 2)
	for _, p := range h.source.postponed() {
		require.GreaterOrEqual(t, p.delay, 50*time.Millisecond)
	}
	require.Zero(t, h.sent.Load())
}

func TestS7_AnswerAndEventInEitherOrder(t *testing.T) {
	for name, c := range map[string]struct {
		eventFirst  bool
		other       int64 // added to the revision of the event
		unknown     bool  // a listing showed it, without a revision
		self, by    uint64
		observation int
	}{
		"answer first":                  {self: 1, observation: 1},
		"event first":                   {eventFirst: true, self: 1, observation: 1},
		"answer first, then a listing":  {unknown: true, self: 1, observation: 1},
		"answer first, another removal": {other: 1, by: 1},
		"event first, another removal":  {eventFirst: true, other: -1, by: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a")
			d := h.due("a")
			event := func(rev int64) {
				g := table.Gone{Name: "a", Token: d.Token, Revision: rev + c.other, At: past.Add(5 * time.Second)}
				if c.unknown {
					g.Revision = 0
				}
				h.gone(g)
			}
			if c.eventFirst {
				h.before = func(ctx context.Context) {
					resp, err := h.direct.KV.Get(ctx, "/")
					if err == nil {
						event(resp.Header.Revision + 1)
					}
				}
			}
			h.handle(d)
			if !c.eventFirst {
				requireOpen(h, 1)
				event(h.Ledger().Recent(1)[0].Revision)
			}
			h.stop()
			s := h.Stats()
			require.Equal(t, []uint64{1, c.self, c.by}, []uint64{s.Removed[verdict.Expiry], s.ReleasedBySelf, s.ReleasedByOther})
			require.Len(t, h.delay.all(), c.observation)
			for _, late := range h.delay.all() {
				require.InDelta(t, 3, late, 0.001)
			}
			requireOpen(h, 0)
		})
	}
}

func TestS7_ConflictsAndEventsInEitherOrder(t *testing.T) {
	for name, eventFirst := range map[string]bool{"answer first": false, "event first": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sharedClient(t))
			h.expired("a")
			d := h.due("a")
			event := func() { h.gone(table.Gone{Name: "a", Token: d.Token, Revision: 5}) }
			h.before = func(context.Context) {
				h.release("a")
				if eventFirst {
					event()
				}
			}
			h.handle(d)
			require.Len(t, h.log.with(t, api.LogConflict, "a"), 1)
			require.GreaterOrEqual(t, h.putBack(), time.Duration(0))
			require.Empty(t, h.Ledger().Recent(10))
			if !eventFirst {
				event()
			}
			s := h.Stats()
			require.Equal(t, []uint64{0, 1, 0, 1}, []uint64{s.Removed[verdict.Expiry], s.Conflicts, s.ReleasedBySelf, s.ReleasedByOther})
			requireOpen(h, 0)
		})
	}
}

func TestS7_EventOfALockThatNobodyTried(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.gone(table.Gone{Name: "x", Token: 3})
	require.EqualValues(t, 1, h.Stats().ReleasedByOther)
	requireOpen(h, 0)
}

// A transaction that is answered soon after Run was told to end is reported; one that
// is not answered is ambiguous, and holds Run up for two seconds only.
func TestATransactionUnderWayAtTheEndIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		answer, ends time.Duration
		failures     map[lockstore.Reason]uint64
	}{
		"answered": {time.Second, time.Second, map[lockstore.Reason]uint64{}},
		"hangs":    {time.Hour, 2 * time.Second, map[lockstore.Reason]uint64{lockstore.ReasonAmbiguous: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) { o.Store.RequestTimeout = 24 * time.Hour })
				h.expired("dead")
				sent := make(chan struct{})
				h.before = func(ctx context.Context) {
					close(sent)
					<-h.ending.Done()
					sleep(ctx, c.answer)
				}
				h.give(h.due("dead"))
				<-sent
				start := time.Now()
				h.stop()
				require.Equal(t, c.ends, time.Since(start))
				require.Equal(t, c.failures, h.failures())
				require.Equal(t, 1-len(c.failures), h.removed())
				require.Len(t, h.Ledger().Recent(1), 1-len(c.failures))
			})
		})
	}
}
