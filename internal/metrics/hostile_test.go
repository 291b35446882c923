package metrics

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func requireParses(tb testing.TB, text []byte) {
	tb.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	_, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	require.NoError(tb, err)
}

// named is a snapshot in which locks with these names are overdue, the first one for the
// longest time, and were removed, the first one last.
func named(names ...string) Snapshot {
	s := Snapshot{Table: table.Stats{OverdueTotal: len(names)}}
	for i, n := range names {
		s.Table.Overdue = append(s.Table.Overdue, makeOverdue(n, fields{
			"alert_at": "170000000" + string(rune('0'+i)), "hostname": "h\xff" + n, "owner": n,
		}))
		s.Forced = append(s.Forced, removal(n, "", 9-i))
	}
	return s
}

func TestHostileLabels(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	const alert, forced = "unlocker_lock_alert_timestamp_seconds", "unlocker_forced_unlock_timestamp_seconds"
	for _, tc := range []struct {
		name  string
		locks []string
		want  string
	}{
		{"invalid UTF-8 that collides", []string{"a\xff", "a\xfe", "a\uFFFD", "b"}, `
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="a` + "\uFFFD" + `",owner="o",trigger="expiry"} 1700000009
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="b",owner="o",trigger="expiry"} 1700000006
			unlocker_lock_alert_timestamp_seconds{lock="a` + "\uFFFD" + `"} 1700000000
			unlocker_lock_alert_timestamp_seconds{lock="b"} 1700000003
			unlocker_lock_series_omitted 2`},
		{"newline, quote, backslash, brace", []string{"a\n\"}\\ 1"}, `
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="a\n\"}\\ 1",owner="o",trigger="expiry"} 1700000009
			unlocker_lock_alert_timestamp_seconds{lock="a\n\"}\\ 1"} 1700000000
			unlocker_lock_series_omitted 0`},
		{"100 KB that collide", []string{long + "a", long + "b"}, `
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="` + long[:512] + `…",owner="o",trigger="expiry"} 1700000009
			unlocker_lock_alert_timestamp_seconds{lock="` + long[:512] + `…"} 1700000000
			unlocker_lock_series_omitted 1`},
		{"control characters and NUL", []string{"a\x00\r\t\x7f"}, `
			unlocker_forced_unlock_timestamp_seconds{hostname="",lock="a` + "\x00\r\t\x7f" + `",owner="o",trigger="expiry"} 1700000009
			unlocker_lock_alert_timestamp_seconds{lock="a` + "\x00\r\t\x7f" + `"} 1700000000
			unlocker_lock_series_omitted 0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg, _ := newRegistry(t, always(named(tc.locks...)), 500)
			require.Equal(t, unindent(tc.want), exposition(t, reg, alert, forced, "unlocker_lock_series_omitted"))
		})
	}
}

// A join on the lock finds one info for each lock, even if labels of hosts collide.
func TestOneInfoPerLock(t *testing.T) {
	reg, _ := newRegistry(t, always{Table: table.Stats{OverdueTotal: 2, Overdue: []table.View{
		makeOverdue("a\xff", fields{"hostname": "first", "owner": "o\n"}), makeOverdue("a\xfe", fields{"hostname": "second"}),
	}}}, 500)
	require.Equal(t, `unlocker_lock_info{hostname="first",lock="a`+"\uFFFD"+`",owner="o\n"} 1`,
		exposition(t, reg, "unlocker_lock_info"))
}

func TestHostileHostsOfRemovals(t *testing.T) {
	long := strings.Repeat("é", 50<<10)
	reg, _ := newRegistry(t, always{Forced: []api.Forced{
		removal("a", "\xff", 9), removal("a", "\xfe", 8), removal("a", "", 7), removal("a", long+"1", 6), removal("a", long+"2", 5),
	}}, 500)
	require.Equal(t, unindent(`
		unlocker_forced_unlock_timestamp_seconds{hostname="",lock="a",owner="o",trigger="expiry"} 1700000007
		unlocker_forced_unlock_timestamp_seconds{hostname="`+long[:252]+`…",lock="a",owner="o",trigger="expiry"} 1700000006
		unlocker_forced_unlock_timestamp_seconds{hostname="`+"\uFFFD"+`",lock="a",owner="o",trigger="expiry"} 1700000009`),
		exposition(t, reg, "unlocker_forced_unlock_timestamp_seconds"))
}

// A name that the ledger truncated must get the same label as the name in the table.
func FuzzLabel(f *testing.F) {
	for _, s := range []string{"", "a", "\xff", strings.Repeat("x", 600), strings.Repeat("\xff", 600), strings.Repeat("é", 300), strings.Repeat("x", 510) + "€€€"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l := label(s, maxName)
		require.True(t, utf8.ValidString(l))
		require.LessOrEqual(t, len(l), maxName+len("…"))
		require.Equal(t, l, label(l, maxName))
		require.Equal(t, l, protocol.Clip([]byte(s), maxName))
	})
}
