package verdict_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A pause of all is a hold, which ends with it: holders could renew all the time.
func TestS3_PausedUntilItEnds(t *testing.T) {
	f := newFixture(t)
	f.signals.Paused = "paused until 14:00:00 by ada@laptop: maintenance"
	f.after(time.Second, verdict.HoldPaused)
	require.Equal(t, f.signals.Paused, f.require(verdict.HoldPaused)[verdict.HoldPaused])
	f.signals.Alarms = []string{"NOSPACE"}
	f.after(time.Hour, verdict.HoldPaused, verdict.HoldAlarm)
	f.signals.Alarms = nil
	f.after(0, verdict.HoldPaused, verdict.HoldAlarm)
	f.after(settle, verdict.HoldPaused)
	f.signals.Paused = ""
	f.after(0)
}

func TestS3_NoRemovalWhileThePausesAreNotInView(t *testing.T) {
	f := newFixture(t)
	f.signals.Unseen = "the pauses cannot be read"
	f.after(time.Second, verdict.HoldDisconnected)
	require.Equal(t, f.signals.Unseen, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected])
	f.signals.Unseen = ""
	f.after(0)

	f.signals.Unseen, f.signals.Connected = "the pauses cannot be read", false
	f.after(time.Second, verdict.HoldDisconnected)
	f.signals.Connected = true
	f.after(settle-1, verdict.HoldDisconnected)
	require.Contains(t, f.require(verdict.HoldDisconnected)[verdict.HoldDisconnected], "cannot be read", "which does not end by itself")
	f.after(1, verdict.HoldDisconnected)
}

// paused are inputs on a lock whose pause lasts for an hour.
func paused() verdict.Inputs {
	in := observedLive()
	in.PausedUntil, in.Pause = in.Now.Add(time.Hour), `by ada@laptop for "deploy/**": maintenance`
	return in
}

// A pause of some locks changes when they are removed, but neither their due nor whether they are
// removed at all.
func TestS3_APausedLockWaits(t *testing.T) {
	for name, c := range map[string]struct {
		edit        func(*verdict.Inputs)
		action      verdict.Action
		remaining   time.Duration
		reason      verdict.Reason
		explanation string
	}{
		"due": {func(in *verdict.Inputs) { in.Now = in.Now.Add(grace) }, verdict.Wait, time.Hour - grace, verdict.ByPause,
			`is due, but paused until 23:13:20 by ada@laptop for "deploy/**": maintenance`},
		"not due yet": {func(*verdict.Inputs) {}, verdict.Wait, time.Hour, verdict.ByPause,
			`is not removed before the pause ends: paused until 23:13:20 by ada@laptop for "deploy/**": maintenance`},
		"due after the pause": {func(in *verdict.Inputs) { in.AutoUnlockAt = in.Now.Add(2 * time.Hour) }, verdict.Wait, 2*time.Hour + grace, verdict.ByDeadline,
			"is removed at 2023-11-15 00:13:23 unless its holder renews it: grace 3s after auto_unlock_at"},
		"due as the pause ends": {func(in *verdict.Inputs) { in.AutoUnlockAt = in.PausedUntil.Add(-grace) }, verdict.Wait, time.Hour, verdict.ByDeadline,
			"is removed at 23:13:20 unless its holder renews it: grace 3s after auto_unlock_at"},
		"until yesterday, by this clock": {func(in *verdict.Inputs) { in.Now, in.PausedUntil = in.Now.Add(grace), in.Now.AddDate(0, 0, -1) }, verdict.Wait, time.Second, verdict.ByPause,
			`is due, but paused until 2023-11-13 22:13:20 by ada@laptop for "deploy/**": maintenance`},
		"orphan": {func(in *verdict.Inputs) { in.Token, in.OrphanDue = 0, in.Now }, verdict.Wait, time.Hour, verdict.ByPause,
			`is due, but paused until 23:13:20 by ada@laptop for "deploy/**": maintenance`},
		"dry run": {func(in *verdict.Inputs) { in.Mode, in.Now = verdict.DryRun, in.Now.Add(grace) }, verdict.Wait, time.Hour - grace, verdict.ByPause,
			`is due, but paused until 23:13:20 by ada@laptop for "deploy/**": maintenance`},
		"off": {func(in *verdict.Inputs) { in.Mode = verdict.Off }, verdict.Leave, time.Hour, verdict.ByPause,
			"is not removed automatically: its mode is off"},
	} {
		t.Run(name, func(t *testing.T) {
			in := paused()
			c.edit(&in)
			v := verdict.Decide(in)
			require.Equal(t, c.action, v.Action)
			require.Equal(t, c.remaining, v.Remaining)
			require.Equal(t, c.reason, v.Reason)
			require.Equal(t, c.explanation, v.Explanation())
			require.Equal(t, v, replayed(t, in))
			in.PausedUntil, in.Pause = time.Time{}, ""
			require.Equal(t, verdict.Decide(in).Due, v.Due)
		})
	}
	in := paused()
	in.Removable = false
	require.Equal(t, verdict.Verdict{Inputs: in, Action: verdict.Leave}, verdict.Decide(in))
}
