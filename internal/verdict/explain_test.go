package verdict_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// What a person on call reads. It is 22:13:20 UTC.
func TestS8_ExplanationSaysWhatALockWaitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		base func() verdict.Inputs
		edit func(*verdict.Inputs)
		want string
	}{
		"deadline": {observedLive, func(*verdict.Inputs) {},
			"waits until 22:13:23: grace 3s after auto_unlock_at"},
		"fractions are rounded up": {observedLive, func(in *verdict.Inputs) { in.AutoUnlockAt = in.Now.Add(-time.Second + 1) },
			"waits until 22:13:23: grace 3s after auto_unlock_at"},
		"not past its deadline": {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(-time.Minute) },
			"is removed at 22:13:23 unless its holder renews it: grace 3s after auto_unlock_at"},
		"another day": {observedLive, func(in *verdict.Inputs) { in.AutoUnlockAt = in.Now.Add(2 * time.Hour) },
			"is removed at 2023-11-15 00:13:23 unless its holder renews it: grace 3s after auto_unlock_at"},
		"the same day of another year": {observedLive, func(in *verdict.Inputs) { in.AutoUnlockAt = in.Now.AddDate(2, 0, 0) },
			"is removed at 2025-11-14 22:13:23 unless its holder renews it: grace 3s after auto_unlock_at"},
		"slow holder": {observedLive, func(in *verdict.Inputs) { in.Offset = -90*time.Second - time.Millisecond },
			"is removed at 22:14:54 unless its holder renews it: its holder's clock is 1m30s slow"},
		"slow holder, past its deadline": {observedLive, func(in *verdict.Inputs) {
			in.Offset, in.Now = -90*time.Second-time.Millisecond, in.Now.Add(91*time.Second)
		}, "waits until 22:14:54: its holder's clock is 1m30s slow"},
		"fast holder": {observedLive, func(in *verdict.Inputs) { in.Offset, in.Now = time.Hour, in.Now.Add(-time.Hour) },
			"waits until 22:13:23: grace 3s after auto_unlock_at according to the clock of this replica; its holder's clock is 1h0m0s fast"},
		"fast holder, not past its deadline": {observedLive, func(in *verdict.Inputs) { in.Offset, in.Now = time.Hour, in.Now.Add(-2*time.Hour) },
			"is removed at 22:13:23 unless its holder renews it: grace 3s after auto_unlock_at according to the clock of this replica; its holder's clock is 1h0m0s fast"},
		"renewal learned late": {replay, func(*verdict.Inputs) {},
			"is removed at 22:14:23 unless its holder renews it: its last renewal was learned late, patience 1m0s"},
		"renewal learned late, past its deadline": {replay, func(in *verdict.Inputs) {
			in.AutoUnlockAt, in.AliveAt = in.Now, in.Now.Add(-time.Minute-time.Millisecond)
		},
			"waits until 22:14:24: its last renewal was learned late, patience 1m0s"},
		"acquisition learned late": {found, func(*verdict.Inputs) {},
			"waits until 22:15:23: its acquisition was learned late, patience 2m0s"},
		"without any stamp": {found, func(in *verdict.Inputs) { in.Late = false },
			"waits until 22:15:23: its holder's clock was never observed, patience 2m0s"},
		"renewed, but without any stamp": {found, func(in *verdict.Inputs) { in.Late, in.Renewed = false, true },
			"waits until 22:18:23: its holder's clock was never observed, patience 5m0s"},
		"step": {observedLive, func(in *verdict.Inputs) { in.NotBefore = 20 * time.Second },
			"waits until 22:13:40: the clock of this replica was set, patience 1m0s"},
		"outage": {observedLive, func(in *verdict.Inputs) { in.Allowance = 12*time.Second + 340*time.Millisecond },
			"waits until 22:13:36: grace 3s after auto_unlock_at; outages of etcd add 12.3s"},
		"outage before the write was learned": {found, func(in *verdict.Inputs) { in.Allowance = time.Minute },
			"waits until 22:15:23: its acquisition was learned late, patience 2m0s"},
		"drift": {observedLive, func(in *verdict.Inputs) { in.LockedAt, in.Drift = in.AutoUnlockAt.Add(-time.Hour), 500 },
			"waits until 22:13:25: grace 3s after auto_unlock_at; drift of its holder's clock may add 1.8s"},
		"drift of a second": {observedLive, func(in *verdict.Inputs) { in.LockedAt, in.Drift = in.AutoUnlockAt.Add(-2000*time.Second), 500 },
			"waits until 22:13:24: grace 3s after auto_unlock_at; drift of its holder's clock may add 1s"},
		"drift, too little to say so": {observedLive, func(in *verdict.Inputs) { in.Drift = 500 },
			"waits until 22:13:24: grace 3s after auto_unlock_at"},
		"storm": {observedLive, func(in *verdict.Inputs) { in.StormDelay = 2 * time.Minute },
			"waits until 22:15:23: grace 3s after auto_unlock_at; many locks came due at once, which adds 2m0s"},
		"standby": {observedLive, func(in *verdict.Inputs) { in.Leader = false },
			"waits until 22:13:28: grace 3s after auto_unlock_at; this replica acts 5s after the leader"},
		"standby without a delay": {observedLive, func(in *verdict.Inputs) { in.Leader, in.StandbyDelay = false, 0 },
			"waits until 22:13:23: grace 3s after auto_unlock_at"},
		"all at once": {replay, func(in *verdict.Inputs) {
			in.Now, in.PatienceAllowance, in.StormDelay, in.Leader = in.AutoUnlockAt, time.Minute, 2*time.Minute, false
		}, "waits until 22:17:48: its last renewal was learned late, patience 1m0s; outages of etcd add 1m0s; many locks came due at once, which adds 2m0s; this replica acts 5s after the leader"},
		"due": {observedLive, func(in *verdict.Inputs) { in.Now = in.Now.Add(grace) },
			"is due and is being removed"},

		"orphan": {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now.Add(time.Minute) },
			"waits until 22:14:20: leftover fields must stay unmodified for reaper.orphan_grace"},
		"orphan, however clocks drift": {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue, in.Drift = 0, in.Now.Add(time.Minute), 50_000 },
			"waits until 22:14:20: leftover fields must stay unmodified for reaper.orphan_grace"},
		"orphan with a deadline": {observedLive, func(in *verdict.Inputs) {
			in.Token, in.OrphanDue, in.AutoUnlockAt = 0, in.Now.Add(time.Minute), in.Now.Add(time.Hour)
		}, "waits until 22:14:20: leftover fields must stay unmodified for reaper.orphan_grace"},
		"orphan, due": {observedLive, func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now },
			"is due and is being removed"},

		"dry run": {observedLive, func(in *verdict.Inputs) { in.Mode = verdict.DryRun },
			"would be removed at 22:13:23, but its mode is dry-run: grace 3s after auto_unlock_at"},
		"dry run, due": {observedLive, func(in *verdict.Inputs) { in.Mode, in.Now = verdict.DryRun, in.Now.Add(grace) },
			"would be removed, but its mode is dry-run"},
		"dry run by a policy": {observedLive, func(in *verdict.Inputs) { in.Mode, in.Policy, in.Now = verdict.DryRun, "batch/**", in.Now.Add(grace) },
			`would be removed, but its mode is dry-run (policy "batch/**")`},
		"off": {observedLive, func(in *verdict.Inputs) { in.Mode = verdict.Off },
			"is not removed automatically: its mode is off"},
		"off by a policy": {observedLive, func(in *verdict.Inputs) { in.Mode, in.Policy, in.Now = verdict.Off, "batch/**", in.Now.Add(time.Hour) },
			`is not removed automatically: its mode is off (policy "batch/**")`},

		"undated": {observedLive, func(in *verdict.Inputs) { in.Removable, in.AutoUnlockAt = false, time.Time{} },
			"is never removed automatically: there is no auto_unlock_at"},
		"malformed": {observedLive, func(in *verdict.Inputs) { in.Removable, in.Fault = false, "alert_at is broken" },
			"is never removed automatically: alert_at is broken"},
		"malformed, whatever its mode": {observedLive, func(in *verdict.Inputs) { in.Removable, in.Fault, in.Mode = false, "alert_at is broken", verdict.Off },
			"is never removed automatically: alert_at is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.base()
			c.edit(&in)
			require.Equal(t, c.want, verdict.Decide(in).Explanation())
		})
	}
}

func TestInstantsAreInUTC(t *testing.T) {
	zone := time.FixedZone("", 6*3600) // where it is 04:13:20 of the next day
	require.Equal(t, "22:14:20", verdict.Instant(past, past.In(zone).Add(time.Minute)))
	require.Equal(t, "2023-11-15 00:13:20", verdict.Instant(past.In(zone), past.In(zone).Add(2*time.Hour)))
}
