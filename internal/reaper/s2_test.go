package reaper

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

const (
	tGrace     = 3 * time.Second
	tTolerance = 2 * time.Second
	tSettle    = 15 * time.Second
	tStandby   = 5 * time.Second
)

// seenLive are inputs on a lock of a minute, acquired by an owner whose clock
// is ours, whose deadline is now.
func seenLive() Inputs {
	now := past.Time()
	return Inputs{
		Now: now, LockedAt: now.Add(-time.Minute), AutoUnlockAt: now, Removable: true, Token: 7, Revision: 9,
		Measured: true, Age: time.Minute, Anchor: -ages,
		Mode: Enforce, Grace: tGrace, Tolerance: tTolerance, Settle: tSettle, StandbyDelay: tStandby, Leader: true,
	}
}

// unseen are inputs on a lock of two minutes that a listing found just now, ten
// seconds past its deadline.
func unseen() Inputs {
	in := seenLive()
	in.Measured, in.Age = false, 0
	in.AutoUnlockAt = in.Now.Add(-10 * time.Second)
	in.LockedAt = in.AutoUnlockAt.Add(-2 * time.Minute)
	return in
}

// Every sentence of "When is a lock due?", as far as a verdict is concerned.
func TestS2_Due(t *testing.T) {
	for name, c := range map[string]struct {
		base func() Inputs
		edit func(*Inputs)
		left time.Duration
	}{
		"seen live, clocks agree": {seenLive, func(*Inputs) {}, tGrace},
		"past it":                 {seenLive, func(in *Inputs) { in.Now = in.Now.Add(tGrace) }, 0},
		"long past it":            {seenLive, func(in *Inputs) { in.Now = in.Now.Add(time.Hour) }, tGrace - time.Hour},
		"a moment before":         {seenLive, func(in *Inputs) { in.Now = in.Now.Add(tGrace - 1) }, 1},
		"slow owner":              {seenLive, func(in *Inputs) { in.Offset = -time.Hour }, tGrace + time.Hour},
		"slow owner, by decades":  {seenLive, func(in *Inputs) { in.Offset = -ages / 4 }, tGrace + ages/4},
		"fast owner":              {seenLive, func(in *Inputs) { in.Offset = time.Hour }, tGrace},
		"fast owner, by decades":  {seenLive, func(in *Inputs) { in.Offset = ages }, tGrace},
		"slow within tolerance":   {seenLive, func(in *Inputs) { in.Offset = -tTolerance }, tGrace},
		"slow beyond tolerance":   {seenLive, func(in *Inputs) { in.Offset = -tTolerance - 1 }, tGrace + tTolerance + 1},
		"measured: no patience":   {seenLive, func(in *Inputs) { in.Age = 0 }, tGrace},
		"anchor later":            {seenLive, func(in *Inputs) { in.Anchor = time.Minute }, time.Minute},
		"anchor earlier":          {seenLive, func(in *Inputs) { in.Anchor = time.Second }, tGrace},
		"credit":                  {seenLive, func(in *Inputs) { in.Credit = time.Minute }, tGrace + time.Minute},
		"credit on the anchor":    {seenLive, func(in *Inputs) { in.Anchor, in.Credit = time.Minute, time.Minute }, 2 * time.Minute},
		"standby":                 {seenLive, func(in *Inputs) { in.Leader = false }, tGrace + tStandby},
		"no grace":                {seenLive, func(in *Inputs) { in.Grace, in.Tolerance = 0, 0 }, 0},

		"unseen, from locked_at":       {unseen, func(*Inputs) {}, 2*time.Minute + tGrace},
		"unseen, offset not measured":  {unseen, func(in *Inputs) { in.Offset = -time.Hour }, 2*time.Minute + tGrace},
		"unseen, watched for a while":  {unseen, func(in *Inputs) { in.Age = time.Minute }, time.Minute + tGrace},
		"unseen, watched long enough":  {unseen, func(in *Inputs) { in.Age = time.Hour }, tGrace - 10*time.Second},
		"unseen, deadline to come":     {unseen, func(in *Inputs) { in.AutoUnlockAt = in.Now.Add(time.Hour) }, time.Hour + tGrace},
		"unseen, renewed with alive":   {unseen, func(in *Inputs) { in.Renewed, in.AliveAt = true, in.AutoUnlockAt.Add(-40*time.Second) }, 40*time.Second + tGrace},
		"unseen, acquired with alive":  {unseen, func(in *Inputs) { in.AliveAt = in.AutoUnlockAt.Add(-40 * time.Second) }, 40*time.Second + tGrace},
		"unseen, renewed, no alive":    {unseen, func(in *Inputs) { in.Renewed = true }, time.Minute + tGrace},
		"unseen, without locked_at":    {unseen, func(in *Inputs) { in.LockedAt = time.Time{} }, time.Minute + tGrace},
		"unseen, at most 5 minutes":    {unseen, func(in *Inputs) { in.LockedAt = in.AutoUnlockAt.Add(-time.Hour) }, 5*time.Minute + tGrace},
		"unseen, alive behind it":      {unseen, func(in *Inputs) { in.AliveAt = in.AutoUnlockAt.Add(time.Hour) }, tGrace},
		"unseen, just short of 5 min":  {unseen, func(in *Inputs) { in.Now = in.AutoUnlockAt.Add(5*time.Minute - 1) }, 2*time.Minute + tGrace},
		"unseen, past by 5 min":        {unseen, func(in *Inputs) { in.Now = in.AutoUnlockAt.Add(5 * time.Minute) }, tSettle + tGrace},
		"unseen, past by 5 min, later": {unseen, func(in *Inputs) { in.Now, in.Age = in.AutoUnlockAt.Add(5*time.Minute), tSettle }, tGrace},
		"unseen, past, anchored":       {unseen, func(in *Inputs) { in.Now, in.Anchor = in.AutoUnlockAt.Add(time.Hour), time.Minute }, time.Minute},
		"unseen, credit":               {unseen, func(in *Inputs) { in.Credit = time.Minute }, 3*time.Minute + tGrace},

		"orphan":          {seenLive, func(in *Inputs) { in.Token, in.OrphanDue = 0, in.Now }, 0},
		"orphan, not yet": {seenLive, func(in *Inputs) { in.Token, in.OrphanDue = 0, in.Now.Add(time.Minute) }, time.Minute},
		"orphan, standby": {seenLive, func(in *Inputs) { in.Token, in.OrphanDue, in.Leader = 0, in.Now, false }, tStandby},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.base()
			c.edit(&in)
			v := Decide(in)
			require.Equal(t, c.left, v.Left)
			due := v.Left
			if !in.Leader {
				due -= tStandby
			}
			require.Equal(t, in.Now.Add(due), v.Due)
			for mode, now := range map[Mode]Action{Enforce: Remove, DryRun: Report, Off: Leave, "": Leave} {
				in.Mode = mode
				want := now
				if c.left > 0 && mode != Off {
					want = Wait
				}
				v := Decide(in)
				require.Equal(t, want, v.Action, "%q", mode)
				require.Equal(t, v, again(t, in))
			}
			in.Removable = false
			require.Equal(t, Verdict{Inputs: in, Action: Leave}, Decide(in))
		})
	}
}

// The formula itself, whatever the clocks: while the owner's clock has not passed
// its deadline, a lock that was seen live waits.
func FuzzS2_NeverBeforeTheOwnersOwnClock(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0))
	f.Add(int64(-time.Hour), int64(time.Minute), int64(time.Second), int64(-1))
	f.Fuzz(func(t *testing.T, offset, until, anchor, credit int64) {
		in := seenLive()
		in.Offset = time.Duration(max(offset, -math.MaxInt64))
		in.AutoUnlockAt = in.Now.Add(time.Duration(until))
		in.Anchor, in.Credit = time.Duration(anchor), max(0, time.Duration(credit))
		if owner := in.Now.Add(in.Offset); !owner.After(in.AutoUnlockAt) {
			require.Equal(t, Wait, Decide(in).Action)
		}
	})
}

// Timestamps as hostile as they can be read, and what adds to them.
func TestS2_NothingOverflows(t *testing.T) {
	for _, deadline := range []int64{1_000_000_000, 8_999_999_999} {
		for _, clock := range []int64{-9_000_000_000, 0, 1_000_000_000, 8_999_999_999, 12_000_000_000} {
			for _, extra := range []time.Duration{0, math.MaxInt64} {
				for _, measured := range []bool{false, true} {
					in := seenLive()
					in.Now, in.AutoUnlockAt, in.LockedAt = time.Unix(clock, 0).UTC(), time.Unix(deadline, 0).UTC(), time.Unix(1_000_000_000, 0).UTC()
					in.Measured, in.Offset, in.Credit, in.StandbyDelay = measured, -ages, extra, extra
					in.Leader, in.Age = false, ages
					v := Decide(in)
					require.False(t, clock < deadline && v.Action == Remove, "%+v", v)
					if extra > 0 {
						require.NotEqual(t, Remove, v.Action, "%+v", v)
						require.Positive(t, v.Left)
					}
				}
			}
		}
	}
}

func TestS2_SightGrowsOld(t *testing.T) {
	s := lock.Sight{Measured: true, Offset: time.Second, Age: time.Second, Anchor: time.Second}
	require.Equal(t, lock.Sight{Measured: true, Offset: time.Second, Age: 3 * time.Second, Anchor: -time.Second}, s.Later(2*time.Second))
}

func TestS2_PoliciesFirstMatchWins(t *testing.T) {
	r := Rules{Mode: Enforce, Grace: 2 * time.Second, Tolerance: time.Second, Policies: []Policy{
		{Match: "batch/*", Mode: Off, Grace: 3 * time.Second},
		{Match: "batch/**", Mode: DryRun, Grace: 4 * time.Second},
		{Match: "**/db", Mode: Enforce, Grace: time.Minute},
		{Match: "host-[0-9]", Mode: Off, Grace: time.Second},
	}}
	require.NoError(t, r.validate())
	require.Equal(t, time.Second, r.LeastGrace())
	for name, want := range map[string]Policy{
		"batch/a": r.Policies[0], "batch/a/b": r.Policies[1], "batch/db": r.Policies[0], "batch/x/db": r.Policies[1],
		"db": r.Policies[2], "a/b/db": r.Policies[2], "host-1": r.Policies[3],
		"host-10": {Mode: Enforce, Grace: 2 * time.Second}, "Batch/a": {Mode: Enforce, Grace: 2 * time.Second}, "\xff": {Mode: Enforce, Grace: 2 * time.Second},
	} {
		in := r.inputs(&lock.Lock{Name: name}, lock.Sight{}, past.Time())
		require.Equal(t, want, Policy{in.Policy, in.Mode, in.Grace}, name)
	}
}

func TestS2_NoPolicyDoesMoreThanTheMode(t *testing.T) {
	for mode, want := range map[Mode][]Mode{
		Enforce: {Enforce, DryRun, Off, Enforce},
		DryRun:  {DryRun, DryRun, Off, DryRun},
		Off:     {Off, Off, Off, Off},
	} {
		r := Rules{Mode: mode, Policies: []Policy{{Match: "0", Mode: Enforce}, {Match: "1", Mode: DryRun}, {Match: "2", Mode: Off}}}
		for i, w := range want {
			p, says := r.Policy(strconv.Itoa(i))
			require.Equal(t, w, p.Mode, "%s %d", mode, i)
			if i == 3 || w != r.Policies[i].Mode {
				require.Equal(t, -1, says)
			} else {
				require.Equal(t, i, says)
			}
		}
		require.Equal(t, mode == Off, r.idle())
	}
}

// The table's instant and the verdict come of the same formula, policies and all.
func TestS2_DueInIsWhatTheVerdictFinds(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Rules.Policies = []Policy{{Match: "a", Mode: Enforce, Grace: time.Hour}}
	})
	h.expired("a", "b")
	for name, grace := range map[string]time.Duration{"a": time.Hour, "b": 2 * time.Second} {
		c := h.candidate(name)
		now := past.Time().Add(time.Minute)
		s := lock.Sight{Measured: true, Offset: -time.Minute, Anchor: math.MinInt64}
		in := h.Rules.inputs(&c.Lock, s, now)
		in.Leader = true
		require.Equal(t, grace, Decide(in).Left)
		require.Equal(t, grace, h.Rules.DueIn(&c.Lock, s, lock.TimestampOf(now)))
	}
}

func TestS2_NewRefusesAGraceBelowTheTolerance(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	negative := "reaper: tolerance, settle and standby delay must not be negative"
	for _, c := range []struct {
		message string
		edit    func(*Rules)
	}{
		{"reaper: grace 1s is less than the clock tolerance 2s", func(r *Rules) { r.Grace = time.Second }},
		{"reaper: grace 1.9s is less than the clock tolerance 2s", func(r *Rules) { r.Policies = []Policy{{"*", Off, 1900 * time.Millisecond}} }},
		{`reaper: unknown mode ""`, func(r *Rules) { r.Mode = "" }},
		{`reaper: unknown mode "dryrun"`, func(r *Rules) { r.Policies = []Policy{{"*", "dryrun", time.Hour}} }},
		{`reaper: policy matches by the malformed glob "a["`, func(r *Rules) { r.Policies = []Policy{{"a[", Off, time.Hour}} }},
		{negative, func(r *Rules) { r.Tolerance = -1 }},
		{negative, func(r *Rules) { r.Settle = -1 }},
		{negative, func(r *Rules) { r.StandbyDelay = -1 }},
	} {
		o := h.Options
		c.edit(&o.Rules)
		_, err := New(o)
		require.EqualError(t, err, c.message)
	}
	o := h.Options
	o.Rules.Grace = o.Rules.Tolerance
	_, err := New(o)
	require.NoError(t, err)
}

// What the log and the ledger keep of a verdict gives the same verdict again.
func TestS2_LogAndLedgerReplay(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Rules.Policies = []Policy{{Match: "a*", Mode: Enforce, Grace: 7 * time.Second}}
		o.Credit = func(time.Time) time.Duration { return 1234567 }
	})
	h.expired("a", "b")
	h.put("o", map[string]string{"alert_at": past.String()})
	c := h.candidates("a", "b", "o")
	c[0].Sight.Measured, c[0].Sight.Offset = true, -12345*time.Millisecond
	require.NoError(t, h.handle(c...))
	require.Equal(t, 3, h.removed())
	replayed := 0
	for _, r := range h.Ledger().Recent(10) {
		text, err := json.Marshal(r.Verdict)
		require.NoError(t, err)
		logged, err := json.Marshal(h.logs.with(t, msgRemoving, r.Name)[0]["verdict"])
		require.NoError(t, err)
		require.JSONEq(t, string(text), string(logged))
		for _, kept := range [][]byte{text, h.logs.raw(t, msgRemoving, r.Name)} {
			var v Verdict
			require.NoError(t, json.Unmarshal(kept, &v))
			require.Equal(t, r.Verdict, v)
			require.Equal(t, v, Decide(v.Inputs))
			replayed++
		}
	}
	require.Equal(t, 6, replayed)
}

// raw returns the verdict of a line as it stands there.
func (l *logs) raw(t *testing.T, message, name string) []byte {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		var fields struct {
			Msg, Lock string
			Verdict   json.RawMessage
		}
		require.NoError(t, json.Unmarshal(line, &fields))
		if fields.Msg == message && fields.Lock == name {
			return fields.Verdict
		}
	}
	require.Fail(t, "no such line")
	return nil
}

// What adds to the sight while a candidate is with a worker.
func TestS2_TimeWithTheWorkerCounts(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) { o.Rules.Settle = time.Minute })
	h.expired("a")
	var asked time.Time
	h.Credit = func(seen time.Time) time.Duration { asked = seen; return 0 }
	w := &worker{Reaper: h.Reaper, requests: h.ctx}
	c := h.candidate("a")
	c.Sight = lock.Sight{Age: 10 * time.Second, Anchor: time.Second}
	c.At = time.Now().Add(-20 * time.Second)
	v := w.verdict(&c, &c.Lock)
	require.Equal(t, c.At.Add(-10*time.Second), asked, "the last write")
	require.InDelta(t, 30*time.Second, v.Age, float64(time.Second))
	require.InDelta(t, -19*time.Second, v.Anchor, float64(time.Second))
	require.InDelta(t, 32*time.Second, v.Left, float64(time.Second))
	require.Equal(t, Wait, v.Action)
}
