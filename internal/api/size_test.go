package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// The estimate is never below the JSON, whatever the names are.
func TestSizeOfALock(t *testing.T) {
	require.GreaterOrEqual(t, excess(t, func(string) string { return "a" }), 0) // no text makes up for what the rest lacks
	rapid.Check(t, func(rt *rapid.T) {
		require.GreaterOrEqual(rt, excess(rt, func(label string) string { return strings.ToValidUTF8(rapid.String().Draw(rt, label), "") }), 0)
	})
}

// excess is by how much the estimate of a lock, whose numbers and times are as long as they can be, is above the JSON.
func excess(t require.TestingT, text func(label string) string) int {
	margin, last := -math.Nextafter(0.1, 0), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	l := Lock{
		Name: text("name"), State: "malformed", UUID: text("uuid"), Hostname: text("host"), Owner: text("owner"),
		Purpose: text("purpose"), Status: text("status"), Explanation: text("explanation"), Urgency: text("urgency"),
		LockedAt: last, AlertAt: last, AutoUnlockAt: last, AliveAt: last, Due: last, ClockOffset: -12345678.123456789, Margin: &margin,
		Rhythm: &Rhythm{RenewedAt: last, Interval: math.MaxUint16 * .1, Missed: math.MaxInt32},
		Token:  math.MaxInt64, Revision: math.MaxInt64, Keys: math.MaxInt32, Waiters: 10_000,
	}
	encoded, err := json.Marshal(l)
	require.NoError(t, err)
	return l.size() - len(terminal.EscapeJSON(encoded))
}

func TestFit(t *testing.T) {
	usual := make([]Lock, 1000)
	for i := range usual {
		usual[i] = Lock{Name: strings.Repeat("n", 100), UUID: strings.Repeat("u", 36), Explanation: strings.Repeat("e", 190), Urgency: strings.Repeat("n", 115)}
	}
	require.Len(t, Fit(usual), 1000)
	hostile := make([]Lock, 1000)
	for i := range hostile {
		hostile[i].Name = strings.Repeat("\x01", 4<<10)
	}
	fit := len(Fit(hostile))
	require.Equal(t, MaxPage/(6*4<<10+fixedSize), fit)
	require.Empty(t, hostile[fit].Name, "takes no memory")
	hostile[0].Name = strings.Repeat("\x01", MaxPage)
	require.Len(t, Fit(hostile), 1)
	require.Empty(t, Fit(nil))
}
