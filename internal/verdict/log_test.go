package verdict_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A reader of the log finds what the API says, in either format.
func TestVerdictsAreLoggedAsTheAPIGivesThem(t *testing.T) {
	now := time.Date(2026, 11, 20, 17, 29, 12, 776301749, time.UTC)
	full := verdict.Verdict{
		Inputs: verdict.Inputs{
			Now: now, LockedAt: now, AutoUnlockAt: now, AliveAt: now, Renewed: true, OrphanDue: now, Removable: true,
			Token: 3, Revision: 4, Observation: verdict.Observation{Measured: true, Offset: -5, Late: true, Age: 6, NotBefore: 14, StormDelay: 15}, Allowance: 8, PatienceAllowance: 16, Policy: "deploy/**",
			Mode: verdict.DryRun, Grace: 9, Tolerance: 10, StandbyDelay: 12, Drift: 17, Forced: 18, MaxForced: 19, Leader: true, PausedUntil: now, Pause: "by ada",
		},
		Action: verdict.Report, Trigger: verdict.Expiry, Due: now, Remaining: -13, Reason: verdict.ByPatience,
	}
	for _, v := range []verdict.Verdict{full, {}} {
		want, err := json.Marshal(v)
		require.NoError(t, err)
		var line bytes.Buffer
		slog.New(slog.NewJSONHandler(&line, nil)).Info("", "verdict", v)
		var got struct{ Verdict json.RawMessage }
		require.NoError(t, json.Unmarshal(line.Bytes(), &got))
		require.JSONEq(t, string(want), string(got.Verdict))
	}
	var line bytes.Buffer
	slog.New(slog.NewTextHandler(&line, nil)).Info("", "verdict", full)
	require.Contains(t, line.String(), " verdict.policy=deploy/** verdict.mode=dry-run verdict.grace=9ns ")
}
