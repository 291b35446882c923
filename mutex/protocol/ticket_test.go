package protocol

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const waiters = "/unlocker/waiters/mutexes/"

func TestTicket(t *testing.T) {
	full := Ticket{
		UUID: "u1", Hostname: "worker-17", PID: "4711", Owner: "billing", Purpose: "invoices", Slots: 3,
		Since: time.Date(2026, 11, 23, 10, 0, 0, 5e8, time.UTC), Holds: []string{"u2", "u3"},
	}
	for _, tc := range []struct {
		value string
		want  Ticket // not the value of a ticket if it has no UUID
	}{
		{value: full.Value(), want: full},
		{value: `{"uuid":"u1"}`, want: Ticket{UUID: "u1"}},
		{value: `{"uuid":"u1","future":[{}]}`, want: Ticket{UUID: "u1"}},
		{value: `{"uuid":"u1","owner":"` + strings.Repeat("é", 300) + `"}`, want: Ticket{UUID: "u1", Owner: strings.Repeat("é", 126) + "…"}},
		{value: `{"uuid":"u1","holds":["","` + strings.Repeat("u", 257) + `","u2"]}`, want: Ticket{UUID: "u1", Holds: []string{"u2"}}},
		{value: `{"uuid":"` + strings.Repeat("u", 256) + `"}`, want: Ticket{UUID: strings.Repeat("u", 256)}},
		{value: `{"uuid":"u1"}` + strings.Repeat(" ", MaxTicket-len(`{"uuid":"u1"}`)), want: Ticket{UUID: "u1"}},
		{value: `{"uuid":"u1","slots":1000}`, want: Ticket{UUID: "u1", Slots: 1000}},
		{value: `{"uuid":"u1","since":"2026-11-23T11:00:00.5+01:00"}`, want: Ticket{UUID: "u1", Since: full.Since}},
		{value: `{"uuid":"u1","since":"9999-12-31T23:59:59Z"}`, want: Ticket{UUID: "u1", Since: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}},
		{value: `{"uuid":"u1","since":"9999-12-31T23:59:59-01:00"}`}, // as JSON cannot write it in UTC
		{value: ``}, {value: `null`}, {value: `{}`}, {value: `[]`}, {value: `{"uuid":"u1"`}, {value: `{"uuid":1}`},
		{value: `{"uuid":"u1","since":"yesterday"}`}, {value: `{"uuid":"u1","slots":-1}`}, {value: `{"uuid":"u1","slots":1001}`},
		{value: `{"uuid":"` + strings.Repeat("u", 257) + `"}`}, {value: `{"uuid":"u1"}` + strings.Repeat(" ", MaxTicket)},
	} {
		t.Run(Clip([]byte(tc.value), 60), func(t *testing.T) {
			got, err := ParseTicket([]byte(tc.value))
			require.Equal(t, tc.want.UUID == "", err != nil)
			got.Holds = append([]string(nil), got.Holds...)
			require.Equal(t, tc.want, got)
		})
	}
	require.JSONEq(t, `{"uuid":"u1","hostname":"worker-17","pid":"4711","owner":"billing","purpose":"invoices",
		"since":"2026-11-23T10:00:00.5Z","slots":3,"holds":["u2","u3"]}`, full.Value())
}

func TestOwnTicketsAreNeverTooLarge(t *testing.T) {
	text := strings.Repeat("<", 4<<10) // six bytes each, in JSON
	ticket := Ticket{UUID: "u", Hostname: text, PID: text, Owner: text, Purpose: text}
	for i := range 1000 {
		ticket.Holds = append(ticket.Holds, fmt.Sprintf("0b4f7e9a-1c2d-4e3f-8a9b-%012d", i))
	}
	got, err := ParseTicket([]byte(ticket.Value()))
	require.NoError(t, err)
	require.Len(t, got.Holds, maxHolds)
	require.Len(t, ticket.Holds, 1000)
}

func TestSplitTicket(t *testing.T) {
	for _, tc := range []struct {
		key, name, ticket string
	}{
		{key: "a//t", name: "a", ticket: "t"},
		{key: "a/b//t", name: "a/b", ticket: "t"},
		{key: "Zürich//\xff", name: "Zürich", ticket: "\xff"},
		{key: ""}, {key: "a"}, {key: "a/t"}, {key: "a//"}, {key: "//t"}, {key: "a///t"}, {key: "a//b/t"}, {key: "a//b//t"}, {key: "\xff//t"},
		{key: "a//" + strings.Repeat("t", 257)},
	} {
		t.Run(Clip([]byte(tc.key), 20), func(t *testing.T) {
			name, ticket, valid := SplitTicket(waiters, []byte(waiters+tc.key))
			require.Equal(t, tc.name, string(name))
			require.Equal(t, tc.ticket, string(ticket))
			require.Equal(t, tc.name != "", valid)
		})
	}
	for _, elsewhere := range []string{"/mutexes/a//t", "a//t"} {
		_, _, valid := SplitTicket(waiters, []byte(elsewhere))
		require.False(t, valid, elsewhere)
	}
}

func FuzzTicket(f *testing.F) {
	f.Add([]byte(`{"uuid":"u","since":"2026-11-23T10:00:00Z","slots":3,"holds":["u2"]}`), "a//t")
	f.Add([]byte(`{"UUID":"u","owner":"\ud800","holds":null}`), "a/b///t")
	f.Fuzz(func(t *testing.T, value []byte, key string) {
		if ticket, err := ParseTicket(value); err == nil {
			for _, text := range []string{ticket.Hostname, ticket.PID, ticket.Owner, ticket.Purpose} {
				require.LessOrEqual(t, len(text), maxLabelLen+len("…"))
			}
			require.LessOrEqual(t, len(ticket.UUID), maxUUIDLen)
			require.LessOrEqual(t, len(ticket.Holds), maxHolds)
			require.True(t, 0 <= ticket.Slots && ticket.Slots <= MaxSlots)
		}
		name, ticket, valid := SplitTicket(waiters, []byte(waiters+key))
		if valid {
			from, end := TicketsOf(waiters, string(name))
			require.Equal(t, waiters+key, from+string(ticket))
			require.True(t, from < waiters+key && waiters+key < end)
			require.NoError(t, ValidateName(string(name)))
		}
	})
}
