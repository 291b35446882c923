package terminal_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

func TestQuote(t *testing.T) {
	for given, want := range map[string]string{
		"billing/invoices":                "billing/invoices",
		"schlüssel/日本語/ключ/مفتاح":        "schlüssel/日本語/ключ/مفتاح",
		"हिन्दी, ไทย, é":                  "हिन्दी, ไทย, é",
		"a b":                             "a b",
		`a\b`:                             `a\b`,
		`say "x"`:                         `say "x"`,
		"🔒":                               "🔒",
		"":                                `""`,
		" a":                              `" a"`,
		"a ":                              `"a "`,
		`"a"`:                             `"\"a\""`,
		"a\x1b[31mb":                      `"a\x1b[31mb"`,
		"a\u009b31mb":                     `"a\u009b31mb"`,
		"a\nb\tc\rd":                      `"a\nb\tc\rd"`,
		"a\x00b\x7f":                      `"a\x00b\x7f"`,
		"a\\\n":                           `"a\\\n"`,
		"\xff\xfe":                        `"\xff\xfe"`,
		"a\u202eb\u2066":                  `"a\u202eb\u2066"`,
		"a\u200bb\ufeff":                  `"a\u200bb\ufeff"`,
		"a\u00a0b":                        `"a\u00a0b"`,
		"a\u3164b":                        `"a\u3164b"`,
		"a\u2800b":                        `"a\u2800b"`,
		"a\ufe0fb":                        `"a\ufe0fb"`,
		"a\U000e0041b":                    `"a\U000e0041b"`,
		"a\u2028b":                        `"a\u2028b"`,
		"\u0301a":                         `"\u0301a"`,
		"a" + strings.Repeat("\u0301", 5): "\"a" + strings.Repeat("\u0301", 3) + `\u0301\u0301"`,
		"a�b":                             "a�b",
	} {
		require.Equal(t, want, terminal.Quote(given))
		require.Equal(t, given, terminal.Unquote(terminal.Quote(given)))
	}
	require.Equal(t, `"a`, terminal.Unquote(`"a`), "not of our making")
	require.Equal(t, `\x41`, terminal.Unquote(`\x41`))
}

func TestQuotedIsSafeAndCanBeRead(t *testing.T) {
	piece := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		`"`, `\`, "\x1b[2J", "\u202e", "\xff", "\xe2\x80", "\u0301", "\n", " ", "\U000e0100", "𝔘", "日", "\ufffd",
	}), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), "")
		q := terminal.Quote(s)
		require.Equal(t, q, terminal.Text(q), "a quoted string is safe")
		require.NotContains(t, q, "\n")
		require.True(t, utf8.ValidString(q))
		require.Equal(t, s, terminal.Unquote(q))
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		require.LessOrEqual(t, terminal.Columns(terminal.Truncate(q, limit)), limit)
	})
}

func TestColumnsAndTruncate(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "日本": 4, "ｗｉｄｅ": 8, "é": 1, "e\u0301": 1, "🔒": 2, "мама": 4, "한글": 4} {
		require.Equal(t, want, terminal.Columns(s), s)
	}
	require.Equal(t, "abc", terminal.Truncate("abc", 3))
	require.Equal(t, "ab…", terminal.Truncate("abcd", 3))
	require.Equal(t, "日…", terminal.Truncate("日本語", 4), "half of a character is none")
	require.Equal(t, "日本", terminal.Truncate("日本", 4))
}

func TestText(t *testing.T) {
	for given, want := range map[string]string{
		"":                         "",
		`say "x" \`:                `say "x" \`,
		"one\ntwo\x1b[2J\n\nthree": "one\ntwo\\x1b[2J\n\nthree",
		"a\tb\r\n":                 `a\tb\r` + "\n",
		"\u202e\"x\"\n\xff":        `\u202e\"x\"` + "\n" + `\xff`,
	} {
		require.Equal(t, want, terminal.Text(given))
	}
}

func TestEscapeJSON(t *testing.T) {
	given := map[string]string{"a": "\x1b\u009b\u202e\U000e0041 日本 𝔘\n e" + strings.Repeat("\u0301", 4)}
	raw, err := json.MarshalIndent(given, "", "  ")
	require.NoError(t, err)
	escaped := terminal.EscapeJSON(raw)
	require.Contains(t, string(escaped), `"\u001b\u009b\u202e\udb40\udc41 日本 𝔘\n e`+strings.Repeat("\u0301", 3)+`\u0301"`)
	require.Contains(t, string(terminal.EscapeYAML(raw)), `\u202e\U000e0041 日本`)
	var decoded map[string]string
	require.NoError(t, json.Unmarshal(escaped, &decoded))
	require.Equal(t, given, decoded)
	plain := []byte("{\"a\": \" ~\\u001b\"}\n")
	require.Equal(t, plain, terminal.EscapeJSON(plain))
	require.Equal(t, `"~\u007f"`+"\n", string(terminal.EscapeJSON([]byte("\"~\x7f\"\n"))))
}

func TestStrip(t *testing.T) {
	require.Equal(t, "a[31mb 日"+strings.Repeat("\u0301", 3), terminal.Strip("\xffa\x1b[31mb\n\u202e \ufffd日"+strings.Repeat("\u0301", 9)))
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 499 * time.Millisecond: "0s", 1500 * time.Millisecond: "2s", -3 * time.Second: "-3s", -90 * time.Minute: "-1h30m",
		59600 * time.Millisecond: "1m00s", 26 * time.Hour: "1d02h", math.MaxInt64: "106751d23h", math.MinInt64 + 1: "-106751d23h",
	} {
		require.Equal(t, want, terminal.Duration(d))
	}
}

func TestRelative(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "now", 400 * time.Millisecond: "now", 600 * time.Millisecond: "in 1s", -12 * time.Second: "12s ago",
		192 * time.Second: "in 3m12s", 59*time.Minute + 59*time.Second: "in 59m59s", -time.Hour: "1h00m ago",
		-25 * time.Hour: "1d01h ago", 400 * 24 * time.Hour: "in 400d00h", 60 * time.Second: "in 1m00s",
	} {
		require.Equal(t, want, terminal.Relative(now.Add(d), now))
	}
	require.Equal(t, "2026-11-20 12:00:00 UTC", terminal.Time(now.In(time.FixedZone("x", 3600))))
}

func TestClock(t *testing.T) {
	for seconds, want := range map[float64]string{0.04: "0s fast", 1.26: "1.3s fast", -30: "30s slow", 90: "1m30s fast", -86400 * 54: "54d00h slow"} {
		require.Equal(t, want, terminal.Clock(seconds))
	}
}
