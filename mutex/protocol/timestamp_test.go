package protocol

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseTimestamp(t *testing.T) {
	const s = Timestamp(1_700_000_000) * Timestamp(time.Second)
	for _, tc := range []struct {
		v    string
		want Timestamp
		text string // the result of String; "" if it is v
	}{
		{v: "1700000000", want: s},
		{v: "1700000000.5", want: s + 500_000_000},
		{v: "1700000000.05", want: s + 50_000_000},
		{v: "1700000000.123", want: s + 123_000_000},
		{v: "1700000000.1234", want: s + 123_400_000},
		{v: "1700000000.12345", want: s + 123_450_000},
		{v: "1700000000.123456", want: s + 123_456_000},
		{v: "1700000000.1234567", want: s + 123_456_700},
		{v: "1700000000.12345678", want: s + 123_456_780},
		{v: "1700000000.123456789", want: s + 123_456_789},
		{v: "1700000000.000000001", want: s + 1},
		{v: "1700000000.1234567899", want: s + 123_456_789, text: "1700000000.123456789"},
		{v: "1700000000.123456789999999", want: s + 123_456_789, text: "1700000000.123456789"},
		{v: "1700000000.0", want: s, text: "1700000000"},
		{v: "1700000000.500", want: s + 500_000_000, text: "1700000000.5"},
		{v: "0001700000000", want: s, text: "1700000000"},
		{v: strings.Repeat("0", 54) + "1700000000", want: s, text: "1700000000"},
		{v: "1700000000." + strings.Repeat("9", 53), want: s + 999_999_999, text: "1700000000.999999999"},
		{v: "1000000000", want: 1e18},
		{v: "8999999999.999999999", want: 8_999_999_999_999_999_999},
		{v: "2023-11-14T22:13:20Z", want: s, text: "1700000000"},
		{v: "2023-11-14T22:13:20.25Z", want: s + 250_000_000, text: "1700000000.25"},
		{v: "2023-11-14T23:13:20+01:00", want: s, text: "1700000000"},
		{v: "2023-11-15T03:58:20.123456789+05:45", want: s + 123_456_789, text: "1700000000.123456789"},
		{v: "2023-11-14T12:13:20-10:00", want: s, text: "1700000000"},
	} {
		t.Run(tc.v, func(t *testing.T) {
			got, err := ParseTimestamp([]byte(tc.v))
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			if tc.text == "" {
				tc.text = tc.v
			}
			require.Equal(t, tc.text, got.String())
			again, err := ParseTimestamp([]byte(got.String()))
			require.NoError(t, err)
			require.Equal(t, got, again)
		})
	}
}

func TestParseTimestampRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, v string
		err     error
	}{
		{"empty", "", errTimestampForm},
		{"text", "tomorrow", errTimestampForm},
		{"negative", "-1700000000", errTimestampForm},
		{"plus", "+1700000000", errTimestampForm},
		{"exponent", "1.7e9", errTimestampForm},
		{"exponent of a plausible one", "1700000000e0", errTimestampForm},
		{"leading space", " 1700000000", errTimestampForm},
		{"trailing space", "1700000000 ", errTimestampForm},
		{"newline, as echo writes it", "1700000000\n", errTimestampForm},
		{"point at the end", "1700000000.", errTimestampForm},
		{"point at the beginning", ".5", errTimestampForm},
		{"two points", "1700000000.5.5", errTimestampForm},
		{"comma", "1700000000,5", errTimestampForm},
		{"sign in the fraction", "1700000000.-5", errTimestampForm},
		{"underscore", "1_700_000_000", errTimestampForm},
		{"hex", "0x6553f100", errTimestampForm},
		{"quoted", `"1700000000"`, errTimestampForm},
		{"not ASCII", "１７００００００００", errTimestampForm},
		{"NUL", "1700000000\x00", errTimestampForm},
		{"no zone", "2023-11-14T22:13:20", errTimestampForm},
		{"space for T", "2023-11-14 22:13:20Z", errTimestampForm},
		{"no such day", "2023-02-30T00:00:00Z", errTimestampForm},
		{"65 bytes", strings.Repeat("0", 55) + "1700000000", errTimestampForm},
		{"a megabyte", strings.Repeat("1", 1<<20), errTimestampForm},

		{"zero", "0", errTimestampRange},
		{"one", "1", errTimestampRange},
		{"an interval", "300", errTimestampRange},
		{"below the minimum", "999999999.999999999", errTimestampRange},
		{"above the maximum", "9000000000", errTimestampRange},
		{"milliseconds", "1700000000000", errTimestampRange},
		{"nanoseconds", "1700000000000000000", errTimestampRange},
		{"overflow of int64", "18446744073709551616", errTimestampRange},
		{"wraps to a plausible one", "18446744075409551616", errTimestampRange},
		{"64 nines", strings.Repeat("9", 64), errTimestampRange},
		{"RFC 3339 before 2001", "1999-01-01T00:00:00Z", errTimestampRange},
		{"RFC 3339 after 2255", "9999-12-31T23:59:59Z", errTimestampRange},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseTimestamp([]byte(tc.v))
			require.ErrorIs(t, err, tc.err)
			require.Zero(t, got)
		})
	}
}

func TestTimestampConversions(t *testing.T) {
	at := time.Date(2023, 11, 14, 23, 13, 20, 500_000_000, time.FixedZone("CET", 3600))
	ts := TimestampOf(at)
	require.Equal(t, "1700000000.5", ts.String())
	require.Equal(t, 1700000000.5, ts.Seconds())
	require.Equal(t, at.UTC(), ts.Time())
	require.False(t, ts.IsZero())

	require.True(t, Timestamp(0).IsZero())
	require.True(t, Timestamp(0).Time().IsZero())
	require.Equal(t, "0", Timestamp(0).String())
}

func TestParseTimestampDoesNotAllocate(t *testing.T) {
	v := []byte("1700000000.123456789")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseTimestamp(v) }))
}
