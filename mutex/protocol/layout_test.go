package protocol

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func layout(t testing.TB, prefix string) Layout {
	t.Helper()
	l, err := NewLayout(prefix)
	require.NoError(t, err)
	return l
}

func TestNewLayout(t *testing.T) {
	for _, tc := range []struct {
		prefix, end string
		ok          bool
	}{
		{prefix: "/mutexes/", end: "/mutexes0", ok: true},
		{prefix: "/", end: "0", ok: true},
		{prefix: "a/b/", end: "a/b0", ok: true},
		{prefix: ""},
		{prefix: "/mutexes"},
	} {
		t.Run(tc.prefix, func(t *testing.T) {
			l, err := NewLayout(tc.prefix)
			if !tc.ok {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.prefix, l.Prefix())
			require.Equal(t, tc.end, l.End())
		})
	}
}

func TestSplit(t *testing.T) {
	l := layout(t, "/mutexes/")
	for _, tc := range []struct {
		key, name, field string
		invalid          bool
	}{
		{key: "/mutexes/a/uuid", name: "a", field: "uuid"},
		{key: "/mutexes/a/b/uuid", name: "a/b", field: "uuid"},
		{key: "/mutexes/a/uuid/uuid", name: "a/uuid", field: "uuid"},
		{key: "/mutexes/a/note", name: "a", field: "note"},
		{key: "/mutexes/a b\n\x00/uuid", name: "a b\n\x00", field: "uuid"},
		{key: "/mutexes/Zürich/東京/uuid", name: "Zürich/東京", field: "uuid"},
		{key: "/mutexes/a/\xff", name: "a", field: "\xff"},
		{key: "/mutexes/./../uuid", name: "./..", field: "uuid"},

		{key: "/mutexes/", name: "/", invalid: true},
		{key: "/mutexes/uuid", name: "/uuid", invalid: true},
		{key: "/mutexes//uuid", name: "//uuid", invalid: true},
		{key: "/mutexes///", name: "///", invalid: true},
		{key: "/mutexes/a/", name: "/a/", invalid: true},
		{key: "/mutexes/a//uuid", name: "/a//uuid", invalid: true},
		{key: "/mutexes//a/uuid", name: "//a/uuid", invalid: true},
		{key: "/mutexes/a//b/uuid", name: "/a//b/uuid", invalid: true},
		{key: "/mutexes/\xff/uuid", name: "/\xff/uuid", invalid: true},
		{key: "/mutexes/a\xc3/b/uuid", name: "/a\xc3/b/uuid", invalid: true},
		{key: "/mut", name: "/", invalid: true},
		{key: "", name: "/", invalid: true},
	} {
		t.Run(tc.key, func(t *testing.T) {
			name, field, valid := l.Split([]byte(tc.key))
			require.Equal(t, tc.name, string(name))
			require.Equal(t, tc.field, string(field))
			require.Equal(t, !tc.invalid, valid)
			require.Equal(t, valid, (&Lock{Name: string(name)}).Valid())
			if valid {
				require.Equal(t, tc.key, l.Key(tc.name, tc.field))
				require.NoError(t, ValidateName(tc.name))
			}
		})
	}
}

func TestSplitOfAValidKeyDoesNotAllocate(t *testing.T) {
	l, key := layout(t, "/mutexes/"), []byte("/mutexes/billing/invoices/auto_unlock_at")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, field, _ := l.Split(key)
		ParseField(field)
	}))
}

func TestRange(t *testing.T) {
	l := layout(t, "/mutexes/")
	from, end := l.Range("a")
	require.Equal(t, "/mutexes/a/", from)
	require.Equal(t, "/mutexes/a0", end)
	for key, in := range map[string]bool{
		"/mutexes/a/uuid":     true,
		"/mutexes/a/b/uuid":   true,
		"/mutexes/a/\xff\xff": true,
		"/mutexes/a":          false,
		"/mutexes/a0/uuid":    false,
		"/mutexes/a-b/uuid":   false,
		"/mutexes/ab/uuid":    false,
	} {
		require.Equal(t, in, from <= key && key < end, "%q", key)
	}
}

func TestValidateName(t *testing.T) {
	for _, tc := range []struct{ name, err string }{
		{name: "a"},
		{name: "a/b/c"},
		{name: "uuid"},
		{name: " "},
		{name: "", err: `lock name "" is empty`},
		{name: "/", err: `lock name "/" has an empty segment`},
		{name: "/a", err: `lock name "/a" has an empty segment`},
		{name: "a/", err: `lock name "a/" has an empty segment`},
		{name: "a//b", err: `lock name "a//b" has an empty segment`},
		{name: "a\xff", err: `lock name "a` + "\uFFFD" + `" is not UTF-8`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := ValidateName(tc.name)
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tc.err)
		})
	}
	require.Less(t, len(ValidateName(strings.Repeat("//", 1<<20)).Error()), 300)
}

func TestClip(t *testing.T) {
	for _, tc := range []struct {
		name, v string
		max     int
		want    string
	}{
		{"empty", "", 5, ""},
		{"fits", "abc", 5, "abc"},
		{"fits exactly", "abcde", 5, "abcde"},
		{"cut", "abcdef", 5, "abcde…"},
		{"max 0", "a", 0, "…"},
		{"empty at max 0", "", 0, ""},
		{"max 1 within a rune", "東京", 1, "…"},
		{"rune that ends at max", "東京", 3, "東…"},
		{"rune across max", "a東京", 3, "a…"},
		{"rune of four bytes across max", "ab😀cd", 5, "ab…"},
		{"longer than max and a rune", strings.Repeat("é", 100), 5, "éé…"},
		{"invalid byte", "a\xffb", 5, "a\uFFFDb"},
		{"run of invalid bytes", "a\xff\xff\xffb", 7, "a\uFFFDb"},
		{"long run of invalid bytes", strings.Repeat("\xff", 100), 5, "\uFFFD…"},
		{"replacements outgrow max", "a\xffb\xffc\xff", 6, "a\uFFFDb…"},
		{"rune cut off in the value", "a\xe6\x9d", 9, "a\uFFFD"},
		{"NUL stays", "a\x00b", 9, "a\x00b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Clip([]byte(tc.v), tc.max)
			require.Equal(t, tc.want, got)
			require.LessOrEqual(t, len(got), tc.max+len("…"))
			require.True(t, utf8.ValidString(got))
		})
	}
}
