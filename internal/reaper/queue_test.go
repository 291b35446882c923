package reaper

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// The removals that wait for their records have a limit, which is included. What exceeds it is counted and said.
func TestRemovalsThatWaitForTheirRecordsAreBounded(t *testing.T) {
	var log strings.Builder
	r := recorder{
		Reaper: &Reaper{Options: Options{Records: struct{ Records }{}, Logger: slog.New(slog.NewTextHandler(&log, nil))}, tally: newTally(newLedger(time.Hour, time.Now))},
		wake:   make(chan struct{}, 1),
	}
	big, small := api.Forced{Name: "big"}, api.Forced{Name: "small"}
	big.UUID = strings.Repeat("x", recordBytes-sizeOf(&big)-sizeOf(&small))
	r.add(big)
	r.add(small)
	require.Len(t, r.first(), 2)
	require.Empty(t, log.String())
	r.add(small)
	r.add(small)
	for range 2 {
		require.Len(t, r.first(), 2)
		require.EqualValues(t, 2, r.Stats().RecordsDropped)
		require.Equal(t, 1, strings.Count(log.String(), api.LogRecordsDropped))
	}
	r.forget(1)
	r.add(small)
	require.Equal(t, []api.Forced{small, small}, r.first())
	require.Equal(t, 2*sizeOf(&small), r.bytes)
	r.forget(2)
	require.Zero(t, r.bytes)
}
