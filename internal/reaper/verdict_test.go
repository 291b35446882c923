package reaper

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

func TestDecide(t *testing.T) {
	deadline := past.Time()
	due := deadline.Add(2 * time.Second)
	base := Inputs{Now: due, AutoUnlockAt: deadline, Grace: 2 * time.Second, Mode: Enforce, Removable: true, Token: 7, Revision: 9, Measured: true, Anchor: -time.Hour, Leader: true}
	orphan := Inputs{Now: due, OrphanDue: due, Mode: Enforce, Removable: true, Revision: 9, Leader: true}
	for name, c := range map[string]struct {
		in      Inputs
		edit    func(*Inputs)
		action  Action
		trigger Trigger
		due     time.Time
		left    time.Duration
	}{
		"due":                       {base, func(*Inputs) {}, Remove, Expiry, due, 0},
		"a moment before":           {base, func(in *Inputs) { in.Now = due.Add(-1) }, Wait, Expiry, due, 1},
		"past, within the grace":    {base, func(in *Inputs) { in.Now = deadline }, Wait, Expiry, due, 2 * time.Second},
		"dry run":                   {base, func(in *Inputs) { in.Mode = DryRun }, Report, Expiry, due, 0},
		"dry run, not yet":          {base, func(in *Inputs) { in.Mode, in.Now = DryRun, deadline }, Wait, Expiry, due, 2 * time.Second},
		"off":                       {base, func(in *Inputs) { in.Mode = Off }, Leave, Expiry, due, 0},
		"no mode":                   {base, func(in *Inputs) { in.Mode = "" }, Leave, Expiry, due, 0},
		"unknown mode":              {base, func(in *Inputs) { in.Mode = "Enforce" }, Leave, Expiry, due, 0},
		"not removable":             {base, func(in *Inputs) { in.Removable = false }, Leave, "", time.Time{}, 0},
		"undated":                   {base, func(in *Inputs) { in.AutoUnlockAt = time.Time{} }, Leave, "", time.Time{}, 0},
		"undated, called orphan":    {base, func(in *Inputs) { in.AutoUnlockAt, in.OrphanDue = time.Time{}, due }, Leave, "", time.Time{}, 0},
		"orphan":                    {orphan, func(*Inputs) {}, Remove, Orphan, due, 0},
		"orphan, not yet":           {orphan, func(in *Inputs) { in.Now = due.Add(-1) }, Wait, Orphan, due, 1},
		"orphan since nobody knows": {orphan, func(in *Inputs) { in.OrphanDue = time.Time{} }, Leave, "", time.Time{}, 0},
		"orphan, dry run":           {orphan, func(in *Inputs) { in.Mode = DryRun }, Report, Orphan, due, 0},
		"orphan, not removable":     {orphan, func(in *Inputs) { in.Removable = false }, Leave, "", time.Time{}, 0},
		"nothing":                   {Inputs{}, func(*Inputs) {}, Leave, "", time.Time{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.edit(&c.in)
			v := Decide(c.in)
			require.Equal(t, Verdict{Inputs: c.in, Action: c.action, Trigger: c.trigger, Due: c.due, Left: c.left}, v)
			require.Equal(t, v, again(t, c.in))
		})
	}
}

// again decides on what the log has of the inputs.
func again(t *testing.T, in Inputs) Verdict {
	t.Helper()
	text, err := json.Marshal(in)
	require.NoError(t, err)
	var read Inputs
	require.NoError(t, json.Unmarshal(text, &read))
	return Decide(read)
}

// Inputs as they are collected at the time being: a monotonic reading in them
// would decide, but not be logged (UTC drops it).
func TestDecideOnWhatIsLogged(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("a")
	h.put("o", map[string]string{"alert_at": past.String()})
	zone := time.FixedZone("", 3600)
	for _, name := range []string{"a", "o"} {
		l := h.candidate(name).Lock
		for _, late := range []time.Duration{-time.Nanosecond, 0, time.Nanosecond} {
			since := time.Now()
			in := h.Rules.inputs(&l, lock.Sight{Age: late.Abs(), Anchor: late}, since.Add(late).In(zone))
			if in.Leader = true; l.Token == 0 {
				in.OrphanDue = since.In(zone).UTC()
			}
			require.Equal(t, Decide(in), again(t, in))
		}
	}
}

func TestS8_NothingWithoutAReadableDeadlineIsRemoved(t *testing.T) {
	p := past.String()
	for name, fields := range map[string]map[string]string{
		"undated":                 {"uuid": "u", "locked_at": p},
		"uuid alone":              {"uuid": "u"},
		"empty deadline":          {"uuid": "u", "auto_unlock_at": ""},
		"words":                   {"uuid": "u", "auto_unlock_at": "yesterday"},
		"zero":                    {"uuid": "u", "auto_unlock_at": "0"},
		"interval":                {"uuid": "u", "auto_unlock_at": "3600"},
		"negative":                {"uuid": "u", "auto_unlock_at": "-1700000000"},
		"milliseconds":            {"uuid": "u", "auto_unlock_at": "1700000000000"},
		"overflow":                {"uuid": "u", "auto_unlock_at": "99999999999999999999999"},
		"space":                   {"uuid": "u", "auto_unlock_at": p + " "},
		"binary":                  {"uuid": "u", "auto_unlock_at": "\xff\x00"},
		"other timestamp bad":     {"uuid": "u", "auto_unlock_at": p, "alert_at": "soon"},
		"uuid empty":              {"uuid": "", "auto_unlock_at": p},
		"uuid too long":           {"uuid": string(make([]byte, 300)), "auto_unlock_at": p},
		"orphan with unknown":     {"auto_unlock_at": p, "x": "y"},
		"unknown alone":           {"x": "y"},
		"large undated":           {"uuid": "u", "backtrace": string(make([]byte, 64<<10))},
		"large orphan, unknown":   {"auto_unlock_at": p, "x": string(make([]byte, 64<<10))},
		"large, deadline the big": {"uuid": "u", "auto_unlock_at": string(make([]byte, 64<<10))},
	} {
		for form, nested := range map[string][]string{"range": nil, "nested": {"a/b", "a/t"}} {
			t.Run(name+"/"+form, func(t *testing.T) {
				h := newHouse(t, sharedClient(t))
				h.put("a", fields)
				h.expired(nested...)
				before := h.keys()
				c := h.candidate("a")
				for _, c.Since = range []time.Time{past.Time(), {}, time.Now()} {
					require.NoError(t, h.handle(c))
				}
				require.Empty(t, h.kv.sent())
				require.Equal(t, before, h.keys())
				require.Len(t, h.source.postponed(), 3)
				require.Equal(t, Park, h.source.postponed()[0].delay)
				require.Zero(t, h.removed())
				require.Empty(t, h.failures())
			})
		}
	}
}

// A deadline that an earlier owner left behind is not this owner's.
func TestS8_LeftoverDeadlineDoesNotCount(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.put("a", map[string]string{"auto_unlock_at": past.String(), "alert_at": past.String()})
	h.put("a", map[string]string{"uuid": "u"})
	h.remove("a")
	require.Empty(t, h.kv.sent())
	require.Len(t, h.keys(), 3)
}

// Names that no lock can have, and a source that makes its candidates up.
func TestS8_WhateverASourceHandsOut(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.put("", map[string]string{"uuid": "u", "/uuid": "u", "/auto_unlock_at": past.String(), "a//auto_unlock_at": past.String(), "a//uuid": "u"})
	h.expired("good")
	before := h.keys()
	forged := h.candidate("good")
	for _, name := range []string{"", "/", "//", "/uuid", "a", "a/", "/a//uuid", "nothing", "goo", "good/", "\xff"} {
		forged.Name = name
		for _, forged.Token = range []int64{0, forged.Token} {
			require.NoError(t, h.handle(forged), "%q", name)
		}
	}
	require.Empty(t, h.kv.sent())
	require.Equal(t, before, h.keys())
}

func TestDryRunLogsAndCountsOnceAndDeletesNothing(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) { o.Rules.Mode = DryRun })
	h.expired("a", "a/b")
	h.put("o", map[string]string{"alert_at": past.String()})
	before := h.keys()
	h.remove("a", "o")
	require.Equal(t, before, h.keys())
	require.Empty(t, h.kv.sent())
	require.EqualValues(t, 2, h.Stats().Would)
	require.Zero(t, h.removed())
	require.Empty(t, h.Ledger().Recent(10))
	lines := h.logs.with(t, message.WouldRemove, "a")
	require.Len(t, lines, 1)
	require.Equal(t, "u-a", lines[0]["record"].(map[string]any)["uuid"])
	for _, p := range h.source.postponed() {
		require.Equal(t, Park, p.delay)
	}
}

func TestAWallClockBehindTheDeadlineWaits(t *testing.T) {
	clock := past.Time().Add(2*time.Second - time.Nanosecond)
	h := newHouse(t, sharedClient(t), func(o *Options) { o.Now = func() time.Time { return clock } })
	h.expired("a")
	for _, behind := range []time.Duration{time.Nanosecond, time.Hour} {
		clock = past.Time().Add(2*time.Second - behind)
		h.remove("a")
	}
	require.Empty(t, h.kv.sent())
	token := h.candidate("a").Token
	require.Equal(t, []postponement{{"a", token, Lead}, {"a", token, time.Hour - Lead}}, h.source.postponed())
	clock = past.Time().Add(2 * time.Second)
	h.remove("a")
	require.Equal(t, 1, h.removed())
}

func TestNewRefuses(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	for i, edit := range []func(*Options){
		func(o *Options) { o.KV = nil }, func(o *Options) { o.Source = nil }, func(o *Options) { o.Delay = nil },
		func(o *Options) { o.Logger = nil }, func(o *Options) { o.BatchSize = 0 }, func(o *Options) { o.BatchSize = 125 },
		func(o *Options) { o.Concurrency = 0 }, func(o *Options) { o.RequestTimeout = 0 },
		func(o *Options) { o.Signals = nil }, func(o *Options) { o.Leader = nil }, func(o *Options) { o.Credit = nil },
		func(o *Options) { o.Rate = -1 }, func(o *Options) { o.Holds.Freshness = 0 }, func(o *Options) { o.Holds.Settle = -1 },
		func(o *Options) { o.Holds.Storm.MinLocks = -1 },
	} {
		o := h.Options
		edit(&o)
		_, err := New(o)
		require.Error(t, err, fmt.Sprint(i))
	}
}
