package verdict_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestDecide(t *testing.T) {
	deadline := past
	due := deadline.Add(2 * time.Second)
	base := verdict.Inputs{Now: due, AutoUnlockAt: deadline, Grace: 2 * time.Second, Mode: verdict.Enforce, Removable: true, Token: 7, Revision: 9, Measured: true, Earliest: -time.Hour, Leader: true}
	orphan := verdict.Inputs{Now: due, OrphanDue: due, Mode: verdict.Enforce, Removable: true, Revision: 9, Leader: true}
	for name, c := range map[string]struct {
		in        verdict.Inputs
		edit      func(*verdict.Inputs)
		action    verdict.Action
		trigger   verdict.Trigger
		due       time.Time
		remaining time.Duration
	}{
		"due":                        {base, func(*verdict.Inputs) {}, verdict.Remove, verdict.Expiry, due, 0},
		"a moment before":            {base, func(in *verdict.Inputs) { in.Now = due.Add(-1) }, verdict.Wait, verdict.Expiry, due, 1},
		"past, within the grace":     {base, func(in *verdict.Inputs) { in.Now = deadline }, verdict.Wait, verdict.Expiry, due, 2 * time.Second},
		"dry run":                    {base, func(in *verdict.Inputs) { in.Mode = verdict.DryRun }, verdict.Report, verdict.Expiry, due, 0},
		"dry run, not yet":           {base, func(in *verdict.Inputs) { in.Mode, in.Now = verdict.DryRun, deadline }, verdict.Wait, verdict.Expiry, due, 2 * time.Second},
		"off":                        {base, func(in *verdict.Inputs) { in.Mode = verdict.Off }, verdict.Leave, verdict.Expiry, due, 0},
		"no mode":                    {base, func(in *verdict.Inputs) { in.Mode = "" }, verdict.Leave, verdict.Expiry, due, 0},
		"unknown mode":               {base, func(in *verdict.Inputs) { in.Mode = "Enforce" }, verdict.Leave, verdict.Expiry, due, 0},
		"not removable":              {base, func(in *verdict.Inputs) { in.Removable = false }, verdict.Leave, "", time.Time{}, 0},
		"undated":                    {base, func(in *verdict.Inputs) { in.AutoUnlockAt = time.Time{} }, verdict.Leave, "", time.Time{}, 0},
		"undated, called orphan":     {base, func(in *verdict.Inputs) { in.AutoUnlockAt, in.OrphanDue = time.Time{}, due }, verdict.Leave, "", time.Time{}, 0},
		"orphan":                     {orphan, func(*verdict.Inputs) {}, verdict.Remove, verdict.Orphan, due, 0},
		"orphan, not yet":            {orphan, func(in *verdict.Inputs) { in.Now = due.Add(-1) }, verdict.Wait, verdict.Orphan, due, 1},
		"orphan, unknown since when": {orphan, func(in *verdict.Inputs) { in.OrphanDue = time.Time{} }, verdict.Leave, "", time.Time{}, 0},
		"orphan, dry run":            {orphan, func(in *verdict.Inputs) { in.Mode = verdict.DryRun }, verdict.Report, verdict.Orphan, due, 0},
		"orphan, not removable":      {orphan, func(in *verdict.Inputs) { in.Removable = false }, verdict.Leave, "", time.Time{}, 0},
		"nothing":                    {verdict.Inputs{}, func(*verdict.Inputs) {}, verdict.Leave, "", time.Time{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.edit(&c.in)
			v := verdict.Decide(c.in)
			require.Equal(t, verdict.Verdict{Inputs: c.in, Action: c.action, Trigger: c.trigger, Due: c.due, Remaining: c.remaining}, v)
			require.Equal(t, v, replayed(t, c.in))
		})
	}
}

// replayed decides on what the log has of the inputs.
func replayed(t *testing.T, in verdict.Inputs) verdict.Verdict {
	t.Helper()
	text, err := json.Marshal(in)
	require.NoError(t, err)
	var read verdict.Inputs
	require.NoError(t, json.Unmarshal(text, &read))
	return verdict.Decide(read)
}

// seenLive are inputs on a lock of a minute, acquired by a holder whose clock
// is ours, whose deadline is now.
func seenLive() verdict.Inputs {
	now := past
	return verdict.Inputs{
		Now: now, LockedAt: now.Add(-time.Minute), AutoUnlockAt: now, Removable: true, Token: 7, Revision: 9,
		Measured: true, Age: time.Minute, Earliest: -ages,
		Mode: verdict.Enforce, Grace: grace, Tolerance: tolerance, Settle: settle, StandbyDelay: standby, Leader: true,
	}
}

// unseen are inputs on a lock of two minutes that a listing found just now, ten
// seconds past its deadline.
func unseen() verdict.Inputs {
	in := seenLive()
	in.Measured, in.Age = false, 0
	in.AutoUnlockAt = in.Now.Add(-10 * time.Second)
	in.LockedAt = in.AutoUnlockAt.Add(-2 * time.Minute)
	return in
}

// Every sentence of "When is a lock due?", as far as a verdict is concerned.
func TestS2_Due(t *testing.T) {
	for name, c := range map[string]struct {
		base      func() verdict.Inputs
		edit      func(*verdict.Inputs)
		remaining time.Duration
	}{
		"seen live, clocks agree":   {seenLive, func(*verdict.Inputs) {}, grace},
		"past it":                   {seenLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(grace) }, 0},
		"long past it":              {seenLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(time.Hour) }, grace - time.Hour},
		"a moment before":           {seenLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(grace - 1) }, 1},
		"slow holder":               {seenLive, func(in *verdict.Inputs) { in.Offset = -time.Hour }, grace + time.Hour},
		"slow holder, by decades":   {seenLive, func(in *verdict.Inputs) { in.Offset = -ages / 4 }, grace + ages/4},
		"fast holder":               {seenLive, func(in *verdict.Inputs) { in.Offset = time.Hour }, grace},
		"fast holder, by decades":   {seenLive, func(in *verdict.Inputs) { in.Offset = ages }, grace},
		"slow within tolerance":     {seenLive, func(in *verdict.Inputs) { in.Offset = -tolerance }, grace},
		"slow beyond tolerance":     {seenLive, func(in *verdict.Inputs) { in.Offset = -tolerance - 1 }, grace + tolerance + 1},
		"measured: no patience":     {seenLive, func(in *verdict.Inputs) { in.Age = 0 }, grace},
		"earliest is later":         {seenLive, func(in *verdict.Inputs) { in.Earliest = time.Minute }, time.Minute},
		"earliest is before":        {seenLive, func(in *verdict.Inputs) { in.Earliest = time.Second }, grace},
		"allowance":                 {seenLive, func(in *verdict.Inputs) { in.Allowance = time.Minute }, grace + time.Minute},
		"allowance on the earliest": {seenLive, func(in *verdict.Inputs) { in.Earliest, in.Allowance = time.Minute, time.Minute }, 2 * time.Minute},
		"standby":                   {seenLive, func(in *verdict.Inputs) { in.Leader = false }, grace + standby},
		"no grace":                  {seenLive, func(in *verdict.Inputs) { in.Grace, in.Tolerance = 0, 0 }, 0},

		"unseen, from locked_at":       {unseen, func(*verdict.Inputs) {}, 2*time.Minute + grace},
		"unseen, offset not measured":  {unseen, func(in *verdict.Inputs) { in.Offset = -time.Hour }, 2*time.Minute + grace},
		"unseen, watched for a while":  {unseen, func(in *verdict.Inputs) { in.Age = time.Minute }, time.Minute + grace},
		"unseen, watched long enough":  {unseen, func(in *verdict.Inputs) { in.Age = time.Hour }, grace - 10*time.Second},
		"unseen, deadline to come":     {unseen, func(in *verdict.Inputs) { in.AutoUnlockAt = in.Now.Add(time.Hour) }, time.Hour + grace},
		"unseen, renewed with alive":   {unseen, func(in *verdict.Inputs) { in.Renewed, in.AliveAt = true, in.AutoUnlockAt.Add(-40*time.Second) }, 40*time.Second + grace},
		"unseen, acquired with alive":  {unseen, func(in *verdict.Inputs) { in.AliveAt = in.AutoUnlockAt.Add(-40 * time.Second) }, 40*time.Second + grace},
		"unseen, renewed, no alive":    {unseen, func(in *verdict.Inputs) { in.Renewed = true }, time.Minute + grace},
		"unseen, without locked_at":    {unseen, func(in *verdict.Inputs) { in.LockedAt = time.Time{} }, time.Minute + grace},
		"unseen, at most 5 minutes":    {unseen, func(in *verdict.Inputs) { in.LockedAt = in.AutoUnlockAt.Add(-time.Hour) }, 5*time.Minute + grace},
		"unseen, alive after it":       {unseen, func(in *verdict.Inputs) { in.AliveAt = in.AutoUnlockAt.Add(time.Hour) }, grace},
		"unseen, just short of 5 min":  {unseen, func(in *verdict.Inputs) { in.Now = in.AutoUnlockAt.Add(5*time.Minute - 1) }, 2*time.Minute + grace},
		"unseen, past by 5 min":        {unseen, func(in *verdict.Inputs) { in.Now = in.AutoUnlockAt.Add(5 * time.Minute) }, settle + grace},
		"unseen, past by 5 min, later": {unseen, func(in *verdict.Inputs) { in.Now, in.Age = in.AutoUnlockAt.Add(5*time.Minute), settle }, grace},
		"unseen, past, earliest later": {unseen, func(in *verdict.Inputs) { in.Now, in.Earliest = in.AutoUnlockAt.Add(time.Hour), time.Minute }, time.Minute},
		"unseen, allowance":            {unseen, func(in *verdict.Inputs) { in.Allowance = time.Minute }, 3*time.Minute + grace},

		"orphan":          {seenLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now }, 0},
		"orphan, not yet": {seenLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now.Add(time.Minute) }, time.Minute},
		"orphan, standby": {seenLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue, in.Leader = 0, in.Now, false }, standby},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.base()
			c.edit(&in)
			v := verdict.Decide(in)
			require.Equal(t, c.remaining, v.Remaining)
			due := v.Remaining
			if !in.Leader {
				due -= standby
			}
			require.Equal(t, in.Now.Add(due), v.Due)
			for mode, now := range map[verdict.Mode]verdict.Action{verdict.Enforce: verdict.Remove, verdict.DryRun: verdict.Report, verdict.Off: verdict.Leave, "": verdict.Leave} {
				in.Mode = mode
				want := now
				if c.remaining > 0 && mode != verdict.Off {
					want = verdict.Wait
				}
				v := verdict.Decide(in)
				require.Equal(t, want, v.Action, "%q", mode)
				require.Equal(t, v, replayed(t, in))
			}
			in.Removable = false
			require.Equal(t, verdict.Verdict{Inputs: in, Action: verdict.Leave}, verdict.Decide(in))
		})
	}
}

// The formula itself, whatever the clocks: while the clock of its holder has not passed
// its deadline, a lock that was seen live waits.
func FuzzS2_NeverBeforeTheHoldersOwnClock(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0))
	f.Add(int64(-time.Hour), int64(time.Minute), int64(time.Second), int64(-1))
	f.Fuzz(func(t *testing.T, offset, until, earliest, allowance int64) {
		in := seenLive()
		in.Offset = time.Duration(max(offset, -math.MaxInt64))
		in.AutoUnlockAt = in.Now.Add(time.Duration(until))
		in.Earliest, in.Allowance = time.Duration(earliest), max(0, time.Duration(allowance))
		if holder := in.Now.Add(in.Offset); !holder.After(in.AutoUnlockAt) {
			require.Equal(t, verdict.Wait, verdict.Decide(in).Action)
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
					in.Measured, in.Offset, in.Allowance, in.StandbyDelay = measured, -ages, extra, extra
					in.Leader, in.Age = false, ages
					v := verdict.Decide(in)
					require.False(t, clock < deadline && v.Action == verdict.Remove, "%+v", v)
					if extra > 0 {
						require.NotEqual(t, verdict.Remove, v.Action, "%+v", v)
						require.Positive(t, v.Remaining)
					}
				}
			}
		}
	}
}

// Inputs as they are collected at the time being: a monotonic reading in them would
// decide, but not be logged (UTC drops it).
func TestDecideOnWhatIsLogged(t *testing.T) {
	zone := time.FixedZone("", 3600)
	for _, l := range []*lock.Lock{listed("a", lock.FieldUUID, lock.FieldLockedAt), listed("orphan")} {
		for _, late := range []time.Duration{-time.Nanosecond, 0, time.Nanosecond} {
			since := time.Now()
			in := rules().Inputs(l, verdict.Observation{Age: late.Abs(), Earliest: late}, since.Add(late).In(zone))
			if in.Leader = true; l.Token == 0 {
				in.OrphanDue = since.In(zone).UTC()
			}
			require.Equal(t, verdict.Decide(in), replayed(t, in))
		}
	}
}
