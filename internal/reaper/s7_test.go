package reaper

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestS7_TheRecordIsLoggedBeforeAndTheOutcomeAfter(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a", "b")
	h.put("a", map[string]string{"owner": "billing", "custom": "kept", "pid": "1"})
	before := 0
	h.kv.before = func() {
		before++
		require.Len(t, h.logs.with(t, msgRemoving, ""), 2)
		require.Empty(t, h.logs.with(t, msgRemoved, ""))
	}
	c := h.candidates("a", "b")
	require.NoError(t, h.handle(c...))
	require.Equal(t, 1, before)

	line := h.logs.with(t, msgRemoving, "a")[0]
	require.Equal(t, map[string]any{"auto_unlock_at": past.String(), "custom": "kept", "hostname": "host", "locked_at": past.String(),
		"owner": "billing", "pid": "1", "purpose": "test", "uuid": "u-a"}, line["record"])
	verdict := line["verdict"].(map[string]any)
	require.Equal(t, "remove", verdict["action"])
	require.Equal(t, "expiry", verdict["trigger"])
	require.Equal(t, true, verdict["removable"])
	require.EqualValues(t, c[0].Revision, verdict["revision"])
	require.EqualValues(t, c[0].Token, verdict["token"])
	require.Equal(t, past.Time().Format(time.RFC3339), verdict["auto_unlock_at"])
	outcome := h.logs.with(t, msgRemoved, "a")
	require.Len(t, outcome, 1)
	require.EqualValues(t, 8, outcome[0]["keys_deleted"])
	require.Equal(t, "u-a", outcome[0]["uuid"])

	recent := h.Ledger().Recent(10)
	require.Len(t, recent, 2)
	require.Equal(t, "b", recent[0].Name, "the newest first")
	require.Equal(t, "a", recent[1].Name)
	require.Equal(t, "host", recent[1].Hostname)
	require.Equal(t, "billing", recent[1].Owner)
	require.EqualValues(t, outcome[0]["revision"], recent[1].Revision)
	require.Equal(t, Remove, recent[1].Verdict.Action)
	require.Len(t, recent[1].Fields, 8)
}

func TestS7_WhatIsLoggedAndKeptIsBounded(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	hostile := "\xff\xfe\x00\x1b[31m\n\r\u2028\"}"
	name := "a" + strings.Repeat("n", 2_000)
	h.put(name, map[string]string{"uuid": strings.Repeat("\xff", 200), "auto_unlock_at": past.String(), "hostname": hostile + strings.Repeat("h", 1_000),
		"owner": hostile, "backtrace": strings.Repeat("\xff", 1<<20)})
	unknown := map[string]string{}
	for i := range 500 {
		unknown[fmt.Sprintf("%03d%s", i, strings.Repeat("f\xff", 500))] = strings.Repeat(hostile, 200)
	}
	for f, v := range unknown {
		h.put(name, map[string]string{f: v})
	}
	h.put("b", map[string]string{"uuid": "u", "auto_unlock_at": past.String(), hostile: hostile})
	for i := range 60 {
		h.put("b", map[string]string{fmt.Sprint("x", i, hostile): strings.Repeat("\x01", 4_000)})
	}
	h.put("b", map[string]string{"more_fields": "0"})
	for _, n := range []string{name, "b"} {
		if n == "b" {
			h.release("nothing")
		}
		h.remove(n)
	}
	require.Empty(t, h.keys())
	lines := append(h.logs.with(t, msgRemoving, ""), h.logs.with(t, msgRemoved, "")...)
	require.Len(t, lines, 4)
	for _, line := range lines {
		require.Less(t, line["bytes"], 1<<20)
		require.True(t, utf8.ValidString(fmt.Sprint(line)))
	}
	require.EqualValues(t, 505-maxLogFields, lines[0]["record"].(map[string]any)["more_fields"])
	for _, r := range h.Ledger().Recent(10) {
		require.LessOrEqual(t, len(r.Fields), maxLogFields)
		require.Less(t, r.size(), 100<<10)
		for _, s := range []string{r.Name, r.UUID, r.Hostname, r.Owner} {
			require.True(t, utf8.ValidString(s))
			require.LessOrEqual(t, len(s), maxLogValue+3)
		}
		for _, f := range r.Fields {
			require.True(t, utf8.ValidString(f.Name) && utf8.ValidString(f.Value))
			require.LessOrEqual(t, len(f.Name), maxLogName+3)
			require.LessOrEqual(t, len(f.Value), maxLogValue+3)
		}
	}
	require.Equal(t, "auto_unlock_at", h.Ledger().Recent(1)[0].Fields[0].Name, "what is known comes first")
}

// Names that look the same when clipped must not hide each other in a JSON object.
func TestS7_FieldsWithNamesThatLookTheSame(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	for _, end := range []string{"1", "2"} {
		h.put("a", map[string]string{strings.Repeat("x", maxLogName) + end: "value " + end})
	}
	h.put("a", map[string]string{"\xff": "value 3", "\xfe": "value 4"})
	h.remove("a")
	line := fmt.Sprint(h.logs.with(t, msgRemoving, "a")[0]["record"])
	for i := range 4 {
		require.Contains(t, line, fmt.Sprint("value ", i+1))
	}
}

// A big value, which makes the lock be read field by field, hides no other field.
func TestS7_UnknownFieldsOfALargeLock(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	h.put("a", map[string]string{"backtrace": strings.Repeat("b", 64<<10), "ticket": "OPS-1", "z/nested/uuid": "u"})
	h.remove("a")
	record := h.logs.with(t, msgRemoving, "a")[0]["record"].(map[string]any)
	require.Equal(t, "OPS-1", record["ticket"])
	require.NotContains(t, record, "more_fields")
	require.Len(t, h.keys(), 1, "the nested name")
	require.Zero(t, h.Ledger().Recent(1)[0].More)
}

// proxied returns a house whose requests go through a proxy.
func proxied(t *testing.T, timeout time.Duration) (*house, *localetcd.Proxy) {
	t.Helper()
	cluster := localetcd.ForTest(t, localetcd.Options{})
	direct, err := cluster.Client()
	require.NoError(t, err)
	proxy, err := localetcd.NewProxy(cluster.Addr(0))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	cli, err := cluster.Client(func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxy.Addr()} })
	require.NoError(t, err)
	h := newHouse(t, direct, func(o *Options) { o.RequestTimeout = timeout })
	h.kv.KV = cli
	return h, proxy
}

func TestS7_AnAmbiguousOutcomeIsCalledSo(t *testing.T) {
	h, proxy := proxied(t, time.Second)
	h.expired("a", "b")
	c := h.candidates("a", "b")
	h.kv.before = proxy.HoldReplies
	require.Error(t, h.handle(c...))
	require.Eventually(t, func() bool { return len(h.keys()) == 0 }, 5*time.Second, 10*time.Millisecond)
	require.Equal(t, map[Reason]uint64{ReasonAmbiguous: 2}, h.failures())
	require.Zero(t, h.removed())
	require.Zero(t, h.Stats().Conflicts)
	require.Len(t, h.logs.with(t, msgAmbiguous, ""), 2)
	require.Empty(t, h.logs.with(t, msgRemoved, ""))
	require.Empty(t, h.Ledger().Recent(10))
	require.Len(t, h.source.postponed(), 2)

	// The watch shows that they are gone, not who did it.
	for i := range c {
		h.finish(h.tally.gone(Gone{Name: c[i].Name, Token: c[i].Token, Revision: 99, At: time.Now()}))
	}
	require.EqualValues(t, 2, h.Stats().ReleasedByOther)
	require.Zero(t, h.Stats().ReleasedBySelf)
	require.Empty(t, h.delays.all())

	// A retry finds nothing.
	h.kv.before = nil
	require.NoError(t, proxy.Heal())
	require.NoError(t, h.handle(c...))
	require.Zero(t, h.removed())
	require.EqualValues(t, 2, h.Stats().Conflicts)
}

// The event comes while the answer is still waited for.
func TestS7_TheEventOfAnAmbiguousRemovalComesFirst(t *testing.T) {
	h, proxy := proxied(t, time.Second)
	h.expired("a")
	c := h.candidate("a")
	h.kv.before = func() {
		proxy.HoldReplies()
		h.finish(h.tally.gone(Gone{Name: "a", Token: c.Token, Revision: 99, At: time.Now()}))
	}
	require.Error(t, h.handle(c))
	require.EqualValues(t, 1, h.Stats().ReleasedByOther)
	require.Zero(t, h.Stats().ReleasedBySelf)
	require.Equal(t, map[Reason]uint64{ReasonAmbiguous: 1}, h.failures())
	require.Zero(t, h.removed())
	require.Empty(t, h.tally.open)
}

func TestS7_ARequestThatNeverArrivesIsAmbiguousToo(t *testing.T) {
	h, proxy := proxied(t, 500*time.Millisecond)
	h.expired("a")
	h.kv.before = proxy.Blackhole
	require.Error(t, h.handle(h.candidate("a")))
	require.Equal(t, map[Reason]uint64{ReasonAmbiguous: 1}, h.failures())
	require.Len(t, h.keys(), 5)
	require.Equal(t, time.Duration(0), h.source.postponed()[0].delay)
	h.kv.before = nil
	require.NoError(t, proxy.Heal())
}

// Where the read fails nothing was sent, and so nothing is ambiguous.
func TestS7_AReadThatFailsIsNotAmbiguous(t *testing.T) {
	h, proxy := proxied(t, 300*time.Millisecond)
	h.expired("a", "b")
	c := h.candidates("a", "b")
	proxy.Blackhole()
	require.Error(t, h.handle(c...))
	require.Equal(t, map[Reason]uint64{ReasonUnreadable: 2}, h.failures())
	require.Len(t, h.logs.with(t, msgUnread, ""), 1)
	require.Len(t, h.source.postponed(), 2)
	require.Empty(t, h.kv.sent())
	require.NoError(t, proxy.Heal())
}

func TestS7_AnswerAndEventInEitherOrder(t *testing.T) {
	for name, c := range map[string]struct {
		eventFirst  bool
		other       int64 // added to the revision of the event
		unknown     bool  // a listing told, without a revision
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
			h := newHouse(t, sharedClient(t))
			h.expired("a")
			token := h.candidate("a").Token
			event := func(rev int64) {
				g := Gone{Name: "a", Token: token, Revision: rev + c.other, At: past.Time().Add(5 * time.Second)}
				if c.unknown {
					g.Revision = 0
				}
				h.finish(h.tally.gone(g))
			}
			if c.eventFirst {
				h.kv.before = func() {
					resp, err := h.cli.Get(h.ctx, "/")
					require.NoError(t, err)
					event(resp.Header.Revision + 1)
				}
			}
			h.remove("a")
			if !c.eventFirst {
				require.Len(t, h.tally.open, 1)
				event(h.Ledger().Recent(1)[0].Revision)
			}
			s := h.Stats()
			require.Equal(t, []uint64{1, c.self, c.by}, []uint64{s.Removed[Expiry], s.ReleasedBySelf, s.ReleasedByOther})
			require.Len(t, h.delays.all(), c.observation)
			for _, late := range h.delays.all() {
				require.InDelta(t, 3, late, 0.001)
			}
			require.Empty(t, h.tally.open)
		})
	}
}

func TestS7_ConflictsAndEventsInEitherOrder(t *testing.T) {
	for name, eventFirst := range map[string]bool{"answer first": false, "event first": true} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, sharedClient(t))
			h.expired("a")
			token := h.candidate("a").Token
			event := func() { h.finish(h.tally.gone(Gone{Name: "a", Token: token, Revision: 5})) }
			h.kv.before = func() {
				h.release("a")
				if eventFirst {
					event()
				}
			}
			h.remove("a")
			if !eventFirst {
				event()
			}
			s := h.Stats()
			require.Equal(t, []uint64{0, 1, 0, 1}, []uint64{s.Removed[Expiry], s.Conflicts, s.ReleasedBySelf, s.ReleasedByOther})
			require.Empty(t, h.tally.open)
		})
	}
}

func TestS7_EventOfALockThatNobodyTried(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.finish(h.tally.gone(Gone{Name: "x", Token: 3}))
	require.EqualValues(t, 1, h.Stats().ReleasedByOther)
	require.Empty(t, h.tally.open)
}

// fake is a removal that needs no etcd.
func fake(name string, value int) *attempt {
	a := &attempt{record: record{fields: []field{{name: "backtrace", value: make([]byte, value)}}}}
	a.Name = name
	return a
}

func TestS7_LedgerKeepsForTheRetention(t *testing.T) {
	now := past.Time()
	l := newLedger(time.Hour, func() time.Time { return now })
	for i := range 120 {
		l.add(fake(fmt.Sprint(i), 10))
		now = now.Add(time.Minute)
	}
	recent := l.Recent(1_000)
	require.Len(t, recent, 60)
	require.Equal(t, "119", recent[0].Name)
	require.Equal(t, "60", recent[59].Name)
	require.Equal(t, []Removal{recent[0], recent[1]}, l.Recent(2))
	require.Empty(t, l.Recent(0))
	now = now.Add(time.Hour)
	require.Empty(t, l.Recent(10))
	require.Zero(t, l.bytes)
	require.Empty(t, l.entries)
}

func TestS7_LedgerIsBoundedByBytes(t *testing.T) {
	now := past.Time()
	l := newLedger(time.Hour, func() time.Time { return now })
	const n = 40_000
	for i := range n {
		l.add(fake(fmt.Sprint(i), 1<<10))
	}
	recent := l.Recent(n)
	require.Less(t, len(recent), n)
	require.Greater(t, len(recent), n/2)
	require.Equal(t, fmt.Sprint(n-1), recent[0].Name)
	sum := 0
	for i := range recent {
		sum += recent[i].size()
	}
	require.Equal(t, sum, l.bytes)
	require.LessOrEqual(t, sum, ledgerBytes)
	page, sum := l.Page(n), 0
	for i := range page {
		sum += page[i].size()
	}
	require.LessOrEqual(t, sum, shownLedgerBytes+page[0].size(), "what people are shown at once is less")
	require.Greater(t, sum, shownLedgerBytes/2)
	require.Equal(t, recent[0].Name, page[0].Name)
}
