package protocol

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseFieldRoundTrip(t *testing.T) {
	want := []string{
		"alert_at", "alive_at", "answered_at", "auto_unlock_at", "backtrace", "hostname",
		"locked_at", "owner", "pid", "purpose", "stack", "status", "uuid",
	}
	var got []string
	for f := FieldUnknown + 1; int(f) < len(fieldNames); f++ {
		require.Equal(t, f, ParseField([]byte(f.String())))
		got = append(got, f.String())
	}
	require.Equal(t, want, got)
	require.True(t, slices.IsSorted(got))
}

func TestParseFieldUnknown(t *testing.T) {
	for _, s := range []string{
		"", "unknown", "UUID", "uuid ", "uuid\x00", "uui", "694d8a2b9c3e4f5a", "\xff",
	} {
		require.Equal(t, FieldUnknown, ParseField([]byte(s)), "%q", s)
	}
	require.Equal(t, "unknown", FieldUnknown.String())
	require.Equal(t, "unknown", Field(len(fieldNames)).String())
	require.Equal(t, "unknown", Field(200).String())
}
