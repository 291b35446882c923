package verdict_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestS2_ObservationsAge(t *testing.T) {
	o := verdict.Observation{Measured: true, Offset: 1, Late: true, Age: 2, NotBefore: 4, StormDelay: 5}
	require.Equal(t, verdict.Observation{Measured: true, Offset: 1, Late: true, Age: 12, NotBefore: -6, StormDelay: 5}, o.Later(10))
	o.NotBefore = 4
	require.EqualValues(t, -1, o.Later(4).NotBefore, "over, which is not none")
	o.NotBefore = 0
	require.Zero(t, o.Later(10).NotBefore, "no step kept it")
}

func TestS2_PoliciesFirstMatchWins(t *testing.T) {
	r := rules(
		verdict.Policy{Match: "batch/*", Mode: verdict.Off, Grace: 3 * time.Second},
		verdict.Policy{Match: "batch/**", Mode: verdict.DryRun, Grace: 4 * time.Second},
		verdict.Policy{Match: "**/db", Mode: verdict.Enforce, Grace: time.Minute},
		verdict.Policy{Match: "host-[0-9]", Mode: verdict.Off, Grace: tolerance},
	)
	require.Equal(t, tolerance, r.MinGrace())
	require.Equal(t, grace, rules().MinGrace())
	none := verdict.Policy{Mode: verdict.Enforce, Grace: grace}
	for name, want := range map[string]verdict.Policy{
		"batch/a": r.Policies[0], "batch/a/b": r.Policies[1], "batch/db": r.Policies[0], "batch/x/db": r.Policies[1],
		"db": r.Policies[2], "a/b/db": r.Policies[2], "host-1": r.Policies[3], "host-10": none, "Batch/a": none, "\xff": none,
	} {
		in := r.Inputs(&protocol.Lock{Name: name}, verdict.Observation{}, past)
		require.Equal(t, want, verdict.Policy{Match: in.Policy, Mode: in.Mode, Grace: in.Grace}, name)
	}
}

func TestS2_NoPolicyDoesMoreThanTheMode(t *testing.T) {
	for mode, want := range map[verdict.Mode][]verdict.Mode{
		verdict.Enforce: {verdict.Enforce, verdict.DryRun, verdict.Off, verdict.Enforce},
		verdict.DryRun:  {verdict.DryRun, verdict.DryRun, verdict.Off, verdict.DryRun},
		verdict.Off:     {verdict.Off, verdict.Off, verdict.Off, verdict.Off},
	} {
		r := verdict.Rules{Reaper: config.Reaper{Mode: mode}, Policies: []verdict.Policy{{Match: "0", Mode: verdict.Enforce}, {Match: "1", Mode: verdict.DryRun}, {Match: "2", Mode: verdict.Off}}}
		for i, w := range want {
			p, index := r.Policy(strconv.Itoa(i))
			require.Equal(t, w, p.Mode, "%s %d", mode, i)
			if i == 3 || w != r.Policies[i].Mode {
				require.Equal(t, -1, index)
			} else {
				require.Equal(t, i, index)
			}
		}
	}
}

// What the table computes and what the verdict finds come from the same formula, policies
// and all.
func TestS2_DueInIsWhatTheVerdictFinds(t *testing.T) {
	r := rules(verdict.Policy{Match: "a", Mode: verdict.Enforce, Grace: time.Hour})
	for name, want := range map[string]time.Duration{"a": time.Hour, "b": grace} {
		o := verdict.Observation{Measured: true, Offset: -time.Minute}
		in := r.Inputs(listed(name, protocol.FieldUUID, protocol.FieldLockedAt), o, past.Add(time.Minute))
		in.Leader, in.Allowance = true, time.Second
		require.Equal(t, want+time.Second, verdict.Decide(in).Remaining)
		require.Equal(t, want+time.Second, in.DueIn())
	}
}

// Each input comes from the lock, from what was observed, or from the rules.
func TestS2_InputsAreWhatIsKnown(t *testing.T) {
	o := verdict.Observation{Measured: true, Offset: 1, Late: true, Age: 2, NotBefore: 4, StormDelay: 5}
	want := verdict.Inputs{
		Now: past, LockedAt: past, AutoUnlockAt: past, AliveAt: past, Renewed: true, Removable: true, Token: 7, Revision: 9,
		Observation: o, Policy: "*", Mode: verdict.DryRun, Grace: time.Hour, Tolerance: tolerance, StandbyDelay: standby, Drift: 7,
	}
	l := listed("a", protocol.FieldUUID, protocol.FieldLockedAt)
	for _, f := range []protocol.Field{protocol.FieldAliveAt, protocol.FieldAutoUnlockAt} {
		l.Put(protocol.KV{Field: f, Value: []byte(protocol.TimestampOf(past).String()), Create: 7, Mod: 9})
	}
	r := rules(verdict.Policy{Match: "*", Mode: verdict.DryRun, Grace: time.Hour})
	r.Drift = 7
	require.Equal(t, want, r.Inputs(l, o, past.In(time.FixedZone("", 3600))))
}

func TestRulesFromConfig(t *testing.T) {
	c := config.Default()
	c.Policies = []config.Policy{{Match: "a/**", Mode: "off", Grace: time.Hour}}
	require.Equal(t, verdict.Rules{Reaper: c.Reaper, Policies: c.Policies, Drift: 500}, verdict.RulesFromConfig(c))
}

// The allowances are of the lock's last write, of which the age says when it was learned.
func TestS3_OutagesCountForTheLastWrite(t *testing.T) {
	for want, in := range map[bool]verdict.Inputs{true: observedLive(), false: replay()} {
		now := time.Now()
		in.AliveAt = time.Time{}
		in.Allow(func(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration) {
			require.EqualValues(t, 8, written)
			require.Equal(t, now.Add(-in.Age), learned)
			require.Equal(t, want, stamped)
			return 1, 2
		}, 8, now)
		require.EqualValues(t, 1, in.Allowance)
		require.EqualValues(t, 2, in.PatienceAllowance)
	}
}

// An expired lock that a policy keeps needs no person, unlike one that reaper.mode keeps.
func TestUrgent(t *testing.T) {
	const held, expired = protocol.Held, protocol.Expired
	for mode, want := range map[verdict.Mode][]protocol.State{
		verdict.Enforce: {held, held, expired, expired}, verdict.DryRun: {held, held, expired, expired}, verdict.Off: {expired, held, expired, expired},
	} {
		r := verdict.Rules{Reaper: config.Reaper{Mode: mode}, Policies: []verdict.Policy{
			{Match: "dry", Mode: verdict.DryRun}, {Match: "off", Mode: verdict.Off}, {Match: "enforce", Mode: verdict.Enforce},
		}}
		for i, name := range []string{"dry", "off", "enforce", "other"} {
			require.Equal(t, want[i], r.Urgent(name, expired), "%s: %s", mode, name)
			require.Equal(t, protocol.Overdue, r.Urgent(name, protocol.Overdue))
		}
	}
}

func TestABrakeIsOfTheReaperOrOfAnyPolicy(t *testing.T) {
	brake := func(n int) verdict.Policy { return verdict.Policy{Match: "*", Brake: config.Brake{MaxForced: n}} }
	require.False(t, rules().Brakes())
	require.False(t, rules(brake(0)).Brakes())
	require.True(t, rules(brake(0), brake(1)).Brakes())
	r := rules(brake(0))
	r.Brake.MaxForced = 1
	require.True(t, r.Brakes())
}

// A margin is the share of the time between the write before and its deadline that was left as the lock was renewed.
func TestMargin(t *testing.T) {
	none := protocol.Timestamp(0)
	at := func(seconds int) protocol.Timestamp {
		return protocol.TimestampOf(past.Add(time.Duration(seconds) * time.Second))
	}
	for name, c := range map[string]struct {
		lock             *protocol.Lock
		arrived, renewed protocol.Timestamp
		share            float64
		known            bool
	}{
		"at once":                   {lasting(60), none, at(-60), 1, true},
		"after a quarter":           {lasting(60), none, at(-45), 0.75, true},
		"at the deadline":           {lasting(60), none, at(0), 0, true},
		"past it":                   {lasting(60), none, at(9), 0, true},
		"by a clock that went back": {lasting(60), none, at(-90), 1, true},
		"from when it arrived":      {lasting(0), at(-40), at(-10), 0.25, true},
		"locked_at comes first":     {lasting(60), at(-40), at(-15), 0.25, true},
		"unknown since when":        {lasting(0), none, at(-10), 0, false},
		"unknown when renewed":      {lasting(60), none, none, 0, false},
		"written at its deadline":   {lasting(0), at(0), at(-10), 0, false},
		"written past it":           {lasting(0), at(10), at(-10), 0, false},
		"without a deadline":        {&protocol.Lock{Name: "a"}, at(-60), at(-10), 0, false},
	} {
		share, known := verdict.Margin(c.lock, c.arrived, c.renewed)
		require.Equal(t, c.known, known, name)
		require.InDelta(t, c.share, share, 1e-9, name)
	}
}

// lasting is a lock that was acquired so many seconds before its deadline, or without a locked_at.
func lasting(seconds int) *protocol.Lock {
	l := listed("a", protocol.FieldUUID)
	if seconds > 0 {
		locked := protocol.TimestampOf(past.Add(-time.Duration(seconds) * time.Second)).String()
		l.Put(protocol.KV{Field: protocol.FieldLockedAt, Value: []byte(locked), Create: 7, Mod: 7})
	}
	return l
}
