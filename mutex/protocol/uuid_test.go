package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUUID(t *testing.T) {
	const canonical = "0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab"
	for _, tc := range []struct {
		name, v   string
		malformed bool
		compact   bool
	}{
		{name: "canonical", v: canonical, compact: true},
		{name: "all zeros", v: "00000000-0000-0000-0000-000000000000", compact: true},
		{name: "upper case", v: strings.ToUpper(canonical)},
		{name: "one digit upper case", v: strings.Replace(canonical, "ab", "aB", 1)},
		{name: "without dashes", v: strings.ReplaceAll(canonical, "-", "")},
		{name: "dashes elsewhere", v: "0b4f7e9-a1c2d-4e3f-8a9b-0123456789ab"},
		{name: "36 other bytes", v: strings.Repeat("x", 36)},
		{name: "36 digits", v: strings.Repeat("1", 36)},
		{name: "36 dashes", v: strings.Repeat("-", 36)},
		{name: "other text", v: "host-1:4711:9"},
		{name: "not UTF-8", v: "\xff\x00\xfe"},
		{name: "newline", v: canonical + "\n"},
		{name: "256 bytes", v: strings.Repeat("u", 256)},
		{name: "empty", v: "", malformed: true},
		{name: "257 bytes", v: strings.Repeat("u", 257), malformed: true},
		{name: "300 bytes", v: strings.Repeat("u", 300), malformed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := Lock{Name: "a"}
			l.Put(KV{Field: FieldUUID, Value: []byte(tc.v), Create: 5, Mod: 5})
			require.EqualValues(t, 5, l.Token)
			if tc.malformed {
				require.Equal(t, Malformed, l.State(noon))
				require.Empty(t, l.UUID())
				return
			}
			require.Equal(t, Undated, l.State(noon))
			require.Equal(t, tc.v, l.UUID())
			require.Equal(t, tc.compact, l.rare == nil)
		})
	}
}
