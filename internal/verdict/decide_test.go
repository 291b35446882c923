package verdict_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestDecide(t *testing.T) {
	deadline := past
	due := deadline.Add(2 * time.Second)
	base := verdict.Inputs{Now: due, AutoUnlockAt: deadline, Grace: 2 * time.Second, Mode: verdict.Enforce, Removable: true, Token: 7, Revision: 9, Observation: verdict.Observation{Measured: true}, Leader: true}
	orphan := verdict.Inputs{Now: due, OrphanDue: due, Mode: verdict.Enforce, Removable: true, Revision: 9, Leader: true}
	expiry := verdict.Verdict{Trigger: verdict.Expiry, Due: due, Reason: verdict.ByDeadline}
	braked := expiry
	braked.Reason = verdict.ByBrake
	leftover := verdict.Verdict{Trigger: verdict.Orphan, Due: due, Reason: verdict.ByOrphan}
	for name, c := range map[string]struct {
		in        verdict.Inputs
		edit      func(*verdict.Inputs)
		action    verdict.Action
		want      verdict.Verdict
		remaining time.Duration
	}{
		"due":                        {base, func(*verdict.Inputs) {}, verdict.Remove, expiry, 0},
		"a moment before":            {base, func(in *verdict.Inputs) { in.Now = due.Add(-1) }, verdict.Wait, expiry, 1},
		"past, within the grace":     {base, func(in *verdict.Inputs) { in.Now = deadline }, verdict.Wait, expiry, 2 * time.Second},
		"dry run":                    {base, func(in *verdict.Inputs) { in.Mode = verdict.DryRun }, verdict.Report, expiry, 0},
		"dry run, not yet":           {base, func(in *verdict.Inputs) { in.Mode, in.Now = verdict.DryRun, deadline }, verdict.Wait, expiry, 2 * time.Second},
		"off":                        {base, func(in *verdict.Inputs) { in.Mode = verdict.Off }, verdict.Leave, expiry, 0},
		"no mode":                    {base, func(in *verdict.Inputs) { in.Mode = "" }, verdict.Leave, expiry, 0},
		"unknown mode":               {base, func(in *verdict.Inputs) { in.Mode = "Enforce" }, verdict.Leave, expiry, 0},
		"braked":                     {base, func(in *verdict.Inputs) { in.Forced, in.MaxForced = 3, 3 }, verdict.Leave, braked, 0},
		"one before the brake":       {base, func(in *verdict.Inputs) { in.Forced, in.MaxForced = 2, 3 }, verdict.Remove, expiry, 0},
		"braked, not yet":            {base, func(in *verdict.Inputs) { in.Forced, in.MaxForced, in.Now = 3, 3, deadline }, verdict.Wait, expiry, 2 * time.Second},
		"not removable":              {base, func(in *verdict.Inputs) { in.Removable = false }, verdict.Leave, verdict.Verdict{}, 0},
		"undated":                    {base, func(in *verdict.Inputs) { in.AutoUnlockAt = time.Time{} }, verdict.Leave, verdict.Verdict{}, 0},
		"undated, called orphan":     {base, func(in *verdict.Inputs) { in.AutoUnlockAt, in.OrphanDue = time.Time{}, due }, verdict.Leave, verdict.Verdict{}, 0},
		"orphan":                     {orphan, func(*verdict.Inputs) {}, verdict.Remove, leftover, 0},
		"orphan, not yet":            {orphan, func(in *verdict.Inputs) { in.Now = due.Add(-1) }, verdict.Wait, leftover, 1},
		"orphan, with a deadline":    {orphan, func(in *verdict.Inputs) { in.Now, in.AutoUnlockAt = due.Add(-1), deadline }, verdict.Wait, leftover, 1},
		"orphan, unknown since when": {orphan, func(in *verdict.Inputs) { in.OrphanDue = time.Time{} }, verdict.Leave, verdict.Verdict{}, 0},
		"orphan, whatever deadline":  {orphan, func(in *verdict.Inputs) { in.OrphanDue, in.AutoUnlockAt = time.Time{}, deadline }, verdict.Leave, verdict.Verdict{}, 0},
		"orphan, dry run":            {orphan, func(in *verdict.Inputs) { in.Mode = verdict.DryRun }, verdict.Report, leftover, 0},
		"orphan, not removable":      {orphan, func(in *verdict.Inputs) { in.Removable = false }, verdict.Leave, verdict.Verdict{}, 0},
		"nothing":                    {verdict.Inputs{}, func(*verdict.Inputs) {}, verdict.Leave, verdict.Verdict{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.edit(&c.in)
			c.want.Inputs, c.want.Action, c.want.Remaining = c.in, c.action, c.remaining
			v := verdict.Decide(c.in)
			require.Equal(t, c.want, v)
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

// observedLive are inputs on a lock of a minute, acquired by a holder whose clock
// is ours, whose deadline is now.
func observedLive() verdict.Inputs {
	now := past
	return verdict.Inputs{
		Now: now, LockedAt: now.Add(-time.Minute), AutoUnlockAt: now, Removable: true, Token: 7, Revision: 9,
		Observation: verdict.Observation{Measured: true, Age: time.Minute},
		Mode:        verdict.Enforce, Grace: grace, Tolerance: tolerance, StandbyDelay: standby, Leader: true,
	}
}

// found are inputs on a lock of two minutes that a listing found just now, ten
// seconds past its deadline.
func found() verdict.Inputs {
	in := observedLive()
	in.Measured, in.Late, in.Age = false, true, 0
	in.AutoUnlockAt = in.Now.Add(-10 * time.Second)
	in.LockedAt = in.AutoUnlockAt.Add(-2 * time.Minute)
	return in
}

// replay are inputs on a lock that was observed live when it was acquired, and whose
// renewal with a minute to come was learned late, just now.
func replay() verdict.Inputs {
	in := observedLive()
	in.Late, in.Age, in.Renewed = true, 0, true
	in.AliveAt, in.AutoUnlockAt = in.Now.Add(-40*time.Second), in.Now.Add(20*time.Second)
	return in
}

// Every sentence of "When is a lock due?" as far as a verdict is concerned.
func TestS2_Due(t *testing.T) {
	const deadline, slow, patience, step = verdict.ByDeadline, verdict.BySlow, verdict.ByPatience, verdict.ByStep
	for name, c := range map[string]struct {
		base      func() verdict.Inputs
		edit      func(*verdict.Inputs)
		remaining time.Duration
		reason    verdict.Reason
	}{
		"live, clocks agree":        {observedLive, func(*verdict.Inputs) {}, grace, deadline},
		"past it":                   {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(grace) }, 0, deadline},
		"long past it":              {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(time.Hour) }, grace - time.Hour, deadline},
		"a moment before":           {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(grace - 1) }, 1, deadline},
		"slow holder":               {observedLive, func(in *verdict.Inputs) { in.Offset = -time.Hour }, grace + time.Hour, slow},
		"slow holder, by decades":   {observedLive, func(in *verdict.Inputs) { in.Offset = -ages / 4 }, grace + ages/4, slow},
		"fast holder":               {observedLive, func(in *verdict.Inputs) { in.Offset = time.Hour }, grace, deadline},
		"fast holder, by decades":   {observedLive, func(in *verdict.Inputs) { in.Offset = ages }, grace, deadline},
		"slow within tolerance":     {observedLive, func(in *verdict.Inputs) { in.Offset = -tolerance }, grace, deadline},
		"slow beyond tolerance":     {observedLive, func(in *verdict.Inputs) { in.Offset = -tolerance - 1 }, grace + tolerance + 1, slow},
		"measured: no patience":     {observedLive, func(in *verdict.Inputs) { in.Age = 0 }, grace, deadline},
		"renewed without a stamp":   {observedLive, func(in *verdict.Inputs) { in.Age, in.Renewed = 0, true }, grace, deadline},
		"step":                      {observedLive, func(in *verdict.Inputs) { in.NotBefore = time.Minute }, time.Minute, step},
		"step, long over":           {observedLive, func(in *verdict.Inputs) { in.Now, in.NotBefore = in.Now.Add(time.Hour), -time.Minute }, -time.Minute, step},
		"step, over before":         {observedLive, func(in *verdict.Inputs) { in.NotBefore = time.Second }, grace, deadline},
		"step, over with the grace": {observedLive, func(in *verdict.Inputs) { in.NotBefore = grace }, grace, deadline},
		"step of a slow holder":     {observedLive, func(in *verdict.Inputs) { in.NotBefore, in.Offset = time.Minute, -time.Hour }, grace + time.Hour, slow},
		"allowance":                 {observedLive, func(in *verdict.Inputs) { in.Allowance = time.Minute }, grace + time.Minute, deadline},
		"allowance on a step":       {observedLive, func(in *verdict.Inputs) { in.NotBefore, in.PatienceAllowance = time.Minute, time.Minute }, 2 * time.Minute, step},
		"storm":                     {observedLive, func(in *verdict.Inputs) { in.StormDelay = time.Minute }, grace + time.Minute, deadline},
		"storm and allowance":       {observedLive, func(in *verdict.Inputs) { in.StormDelay, in.Allowance = time.Minute, time.Hour }, grace + time.Hour + time.Minute, deadline},
		"standby":                   {observedLive, func(in *verdict.Inputs) { in.Leader = false }, grace + standby, deadline},
		"no grace":                  {observedLive, func(in *verdict.Inputs) { in.Grace, in.Tolerance = 0, 0 }, 0, deadline},

		"found, from locked_at":          {found, func(*verdict.Inputs) {}, 2*time.Minute + grace, patience},
		"found, offset not measured":     {found, func(in *verdict.Inputs) { in.Offset = -time.Hour }, 2*time.Minute + grace, patience},
		"found, watched for a while":     {found, func(in *verdict.Inputs) { in.Age = time.Minute }, time.Minute + grace, patience},
		"found, watched long enough":     {found, func(in *verdict.Inputs) { in.Age = time.Hour }, grace - 10*time.Second, deadline},
		"found, deadline to come":        {found, func(in *verdict.Inputs) { in.AutoUnlockAt = in.Now.Add(time.Hour) }, time.Hour + grace, deadline},
		"found, renewed with alive_at":   {found, func(in *verdict.Inputs) { in.Renewed, in.AliveAt = true, in.AutoUnlockAt.Add(-40*time.Second) }, 40*time.Second + grace, patience},
		"found, acquired with alive_at":  {found, func(in *verdict.Inputs) { in.AliveAt = in.AutoUnlockAt.Add(-40 * time.Second) }, 40*time.Second + grace, patience},
		"found, as late as its deadline": {found, func(in *verdict.Inputs) { in.Age = 2*time.Minute + 10*time.Second }, grace - 10*time.Second, deadline},
		"found, renewed without":         {found, func(in *verdict.Inputs) { in.Renewed = true }, 5*time.Minute + grace, patience},
		"found, without locked_at":       {found, func(in *verdict.Inputs) { in.LockedAt = time.Time{} }, 5*time.Minute + grace, patience},
		"found, at most 5 minutes":       {found, func(in *verdict.Inputs) { in.LockedAt = in.AutoUnlockAt.Add(-time.Hour) }, 5*time.Minute + grace, patience},
		"found, alive after it":          {found, func(in *verdict.Inputs) { in.AliveAt = in.AutoUnlockAt.Add(time.Hour) }, grace, patience},
		"found, long past it":            {found, func(in *verdict.Inputs) { in.Now = in.AutoUnlockAt.Add(time.Hour) }, 2*time.Minute + grace, patience},
		"found, years past it":           {found, func(in *verdict.Inputs) { in.Now = in.AutoUnlockAt.Add(ages) }, 2*time.Minute + grace, patience},
		"found, a step is over later":    {found, func(in *verdict.Inputs) { in.NotBefore = time.Hour }, time.Hour, step},
		"found, a step is over before":   {found, func(in *verdict.Inputs) { in.NotBefore = time.Minute }, 2*time.Minute + grace, patience},
		"found, allowance":               {found, func(in *verdict.Inputs) { in.PatienceAllowance = time.Minute }, 3*time.Minute + grace, patience},
		"found after an outage":          {found, func(in *verdict.Inputs) { in.Allowance = time.Minute }, 2*time.Minute + grace, patience},
		"found after a long outage":      {found, func(in *verdict.Inputs) { in.Allowance = time.Hour }, time.Hour - 10*time.Second + grace, deadline},
		"found, storm":                   {found, func(in *verdict.Inputs) { in.StormDelay = time.Minute }, 3*time.Minute + grace, patience},
		"live, but without any stamp":    {found, func(in *verdict.Inputs) { in.Late = false }, 2*time.Minute + grace, patience},
		"replay: patience all the same":  {replay, func(*verdict.Inputs) {}, time.Minute + grace, patience},
		"replay, watched for a while":    {replay, func(in *verdict.Inputs) { in.Age = 30 * time.Second }, 30*time.Second + grace, patience},
		"replay, watched long enough":    {replay, func(in *verdict.Inputs) { in.Age = time.Hour }, 20*time.Second + grace, deadline},
		"replay: observation delays yet": {replay, func(in *verdict.Inputs) { in.Offset = -time.Hour }, time.Hour + 20*time.Second + grace, slow},
		"replay, but observed live":      {replay, func(in *verdict.Inputs) { in.Late = false }, 20*time.Second + grace, deadline},

		"orphan":           {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now }, 0, verdict.ByOrphan},
		"orphan, not yet":  {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now.Add(time.Minute) }, time.Minute, verdict.ByOrphan},
		"orphan, standby":  {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue, in.Leader = 0, in.Now, false }, standby, verdict.ByOrphan},
		"orphan, in storm": {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue, in.StormDelay = 0, in.Now, time.Hour }, 0, verdict.ByOrphan},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.base()
			c.edit(&in)
			v := verdict.Decide(in)
			require.Equal(t, c.remaining, v.Remaining)
			require.Equal(t, c.reason, v.Reason)
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

// Rule 8: due is later by 500 ppm of the time between the stamp that counts and the deadline.
func TestS2_DueIsLaterByTheDriftOfTheHoldersClock(t *testing.T) {
	const longer, ppm = 100 * time.Minute, 3 * time.Second
	renewed := func(in *verdict.Inputs, alive time.Duration) {
		in.LockedAt, in.Renewed, in.Drift = in.AutoUnlockAt.Add(-2*longer), true, 500
		if alive > 0 {
			in.AliveAt = in.AutoUnlockAt.Add(-alive)
		}
	}
	for name, c := range map[string]struct {
		edit func(*verdict.Inputs)
		want time.Duration
	}{
		"acquired":                  {func(in *verdict.Inputs) { in.LockedAt, in.Drift = in.AutoUnlockAt.Add(-longer), 500 }, grace + ppm},
		"a slow holder":             {func(in *verdict.Inputs) { renewed(in, longer); in.Offset = -time.Minute }, grace + ppm + time.Minute},
		"renewed":                   {func(in *verdict.Inputs) { renewed(in, longer) }, grace + ppm},
		"without a stamp":           {func(in *verdict.Inputs) { renewed(in, 0) }, grace + 2*ppm},
		"learned late":              {func(in *verdict.Inputs) { renewed(in, longer); in.Late, in.Age = true, time.Hour }, grace + 2*ppm},
		"found":                     {func(in *verdict.Inputs) { renewed(in, longer); in.Measured, in.Age = false, time.Hour }, grace + ppm},
		"found, learned late":       {func(in *verdict.Inputs) { renewed(in, longer); in.Measured, in.Late, in.Age = false, true, time.Hour }, grace + ppm},
		"found, patience":           {func(in *verdict.Inputs) { renewed(in, longer); in.Measured, in.Age = false, 0 }, 5*time.Minute + grace + ppm},
		"no stamp at all":           {func(in *verdict.Inputs) { renewed(in, 0); in.LockedAt = time.Time{} }, grace + 150*time.Millisecond},
		"a stamp past the deadline": {func(in *verdict.Inputs) { renewed(in, 0); in.LockedAt = in.AutoUnlockAt.Add(time.Hour) }, grace},
		"on a step":                 {func(in *verdict.Inputs) { renewed(in, longer); in.NotBefore = time.Hour }, time.Hour + ppm},
	} {
		in := observedLive()
		c.edit(&in)
		require.Equal(t, c.want, in.DueIn(), name)
		require.Equal(t, verdict.Decide(in), replayed(t, in), name)
	}
}

// By how much a step of our wall clock may make a lock due earlier: not to before it
// would have been due without it, or its patience and grace from now.
func TestS2_AStepKeepsALockForItsPatience(t *testing.T) {
	for name, c := range map[string]struct {
		base func() verdict.Inputs
		edit func(*verdict.Inputs)
		want time.Duration
	}{
		"old due comes first":           {observedLive, func(*verdict.Inputs) {}, grace},
		"it has come":                   {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(time.Hour) }, grace - time.Hour},
		"patience comes first":          {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(-time.Hour) }, time.Minute + grace},
		"slow holder":                   {observedLive, func(in *verdict.Inputs) { in.Offset = -10 * time.Second }, 10*time.Second + grace},
		"found, patience almost over":   {found, func(in *verdict.Inputs) { in.Age = 2 * time.Minute }, grace},
		"an earlier step, not yet over": {observedLive, func(in *verdict.Inputs) { in.NotBefore = 30 * time.Second }, 30 * time.Second},
		"outages and storms add to it": {observedLive, func(in *verdict.Inputs) {
			in.Allowance, in.PatienceAllowance, in.StormDelay = time.Hour, time.Hour, time.Hour
		}, grace},
		"an outage before it was known": {observedLive, func(in *verdict.Inputs) { in.Allowance = 30 * time.Second }, 30*time.Second + grace},
	} {
		in := c.base()
		c.edit(&in)
		require.Equal(t, c.want, in.AfterStep(), name)
	}
}

// The formula itself, whatever the clocks: while the clock of its holder has not passed
// its deadline, a lock whose last stamp was observed live waits.
func FuzzS2_NeverBeforeTheHoldersOwnClock(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0), false)
	f.Add(int64(-time.Hour), int64(time.Minute), int64(time.Second), int64(-1), true)
	f.Fuzz(func(t *testing.T, offset, until, notBefore, allowance int64, late bool) {
		in := observedLive()
		in.Offset = time.Duration(max(offset, -math.MaxInt64))
		in.AutoUnlockAt = in.Now.Add(time.Duration(until))
		in.Late, in.NotBefore, in.Allowance = late, max(0, time.Duration(notBefore)), max(0, time.Duration(allowance))
		in.PatienceAllowance = in.Allowance
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
					in := observedLive()
					in.Now, in.AutoUnlockAt, in.LockedAt = time.Unix(clock, 0).UTC(), time.Unix(deadline, 0).UTC(), time.Unix(1_000_000_000, 0).UTC()
					in.Measured, in.Offset, in.Allowance, in.StormDelay, in.StandbyDelay = measured, -ages, extra, extra, extra
					in.PatienceAllowance = extra
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
	for _, l := range []*protocol.Lock{listed("a", protocol.FieldUUID, protocol.FieldLockedAt), listed("orphan")} {
		for _, late := range []time.Duration{-time.Nanosecond, 0, time.Nanosecond} {
			since := time.Now()
			in := rules().Inputs(l, verdict.Observation{Age: late.Abs(), NotBefore: late}, since.Add(late).In(zone))
			if in.Leader = true; l.Token == 0 {
				in.OrphanDue = since.In(zone).UTC()
			}
			require.Equal(t, verdict.Decide(in), replayed(t, in))
		}
	}
}
