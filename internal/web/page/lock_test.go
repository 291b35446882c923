package page

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestShell(t *testing.T) {
	for given, want := range map[string]string{
		"billing/invoices": "billing/invoices",
		"a b":              "'a b'",
		"it's; rm -rf /":   `'it'\''s; rm -rf /'`,
		"$(id)`id`":        "'$(id)`id`'",
		"":                 `'""'`,
		"a\nb\x1b[2J":      `'"a\nb\x1b[2J"'`,
		"\u202ea":          `'"\u202ea"'`,
	} {
		require.Equal(t, want, shell(given))
	}
}

func TestPatternMatchesOnlyTheName(t *testing.T) {
	for _, name := range []string{"billing/invoices", "a*b?", `a\b`, "x[1]/{y,z}", "**"} {
		pattern := Lock{Name: name}.Pattern()
		require.True(t, doublestar.MatchUnvalidated(pattern, name), pattern)
		for _, other := range []string{"billing/invoices/a", "aXb?", "ab", "x1/y", "any"} {
			require.False(t, doublestar.MatchUnvalidated(pattern, other), pattern)
		}
	}
	require.Empty(t, Lock{Name: "evil\x1b[2J"}.Pattern(), "no command has it as it is")
}

func TestValue(t *testing.T) {
	for text, want := range map[string]value{
		"main.go:1":              {First: "main.go:1", Lines: 1},
		"main.go:1\nmain.go:2\n": {First: "main.go:1", Lines: 2, Long: true},
		"\x1b[31m\u202ered":      {Text: `\x1b[31m\u202ered`, First: `\x1b[31m\u202ered`, Lines: 1},
		strings.Repeat("x", 500): {First: strings.Repeat("x", 79) + "…", Lines: 1, Long: true},
	} {
		if want.Text == "" {
			want.Text = text
		}
		require.Equal(t, &want, newValue(api.Field{Value: text}))
	}
	require.Equal(t, 70000, newValue(api.Field{Value: "x…", TruncatedFrom: 70000}).Bytes)
}

// The version changes with everything after which the page is about another lock, or about none.
func TestVersion(t *testing.T) {
	held := api.LockDetail{Lock: api.Lock{Token: 3}}
	taken := api.LockDetail{Lock: api.Lock{Token: 4}}
	overwritten := api.LockDetail{Lock: api.Lock{Token: 3, UUID: "u"}}
	versions := map[string]bool{}
	for _, l := range []Lock{
		{Detail: &held}, {Detail: &taken}, {Detail: &overwritten}, {}, {Unread: "etcd is down"}, {Forced: []api.Forced{{At: noon()}}}, {Forced: []api.Forced{{At: ago(1)}}},
	} {
		versions[l.Version()] = true
	}
	require.Len(t, versions, 7)
	renewed := api.LockDetail{Lock: api.Lock{Token: 3, Revision: 9}}
	require.Equal(t, Lock{Detail: &held}.Version(), Lock{Detail: &renewed, Unread: "etcd is down"}.Version())
}

func TestInputs(t *testing.T) {
	v := verdict.Verdict{Inputs: verdict.Inputs{
		Now: time.Date(2026, 11, 21, 22, 0, 0, 5e6, time.UTC), Grace: 2 * time.Second, Pause: "by \u202eada", Mode: verdict.Enforce,
	}}
	got := inputs(v)
	require.Contains(t, got, input{Key: "now", Time: moment{t: v.Now}})
	require.Contains(t, got, input{Key: "grace", Value: "2s"})
	require.Contains(t, got, input{Key: "leader", Value: "false"})
	require.Contains(t, got, input{Key: "pause", Value: `by \u202eada`})
	require.NotContains(t, got, input{Key: "policy", Value: ""})
}

func TestEveryInputHasAMeaning(t *testing.T) {
	parts, err := files.ReadFile("templates/parts.html")
	require.NoError(t, err)
	all := map[string]string{}
	for _, found := range regexp.MustCompile(`eq \. "([a-z_]+)"\}\}(.*)`).FindAllStringSubmatch(string(parts), -1) {
		all[found[1]] = found[2]
	}
	for _, of := range []reflect.Type{reflect.TypeFor[verdict.Inputs](), reflect.TypeFor[verdict.Observation](), reflect.TypeFor[verdict.Verdict]()} {
		for i := range of.NumField() {
			if key, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); key != "" {
				require.NotEmpty(t, all[key], key)
				delete(all, key)
			}
		}
	}
	require.Empty(t, all)
}
