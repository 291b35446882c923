package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAMachineThatStandsStillConvictsNobody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		stood       time.Duration
		fails, runs int
		says        string
	}{
		{tolerable, 2, 3, ""},
		{tolerable, 3, 3, "failure 3\nthe machine stalled for 250ms meanwhile: this may be its fault"},
		{tolerable - 1, 2, 1, "failure 1"},
		{tolerable, 0, 1, ""},
	} {
		runs := 0
		c := check{run: func(t *trial) {
			if runs++; runs <= test.fails {
				t.fail("failure %d", runs)
			}
		}}
		m := meter(func() func() time.Duration { return func() time.Duration { return test.stood } })
		err := m.try(t.Context(), c, []string{"true"}, func(line string) { t.Log(line) })
		if test.says == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, test.says)
		}
		require.Equal(t, test.runs, runs)
	}
}

func TestStandstillIsMeasured(t *testing.T) {
	stop := timerLag()
	script := fmt.Sprintf("kill -STOP %d; sleep 0.5; kill -CONT %[1]d", os.Getpid())
	require.NoError(t, exec.CommandContext(t.Context(), "sh", "-c", script).Run())
	require.Greater(t, stop(), 400*time.Millisecond)
}
