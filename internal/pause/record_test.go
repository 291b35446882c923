package pause_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/pause"
)

func TestRecord(t *testing.T) {
	since := time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)
	for match, key := range map[string]string{"": "all", "deploy/**": "match/deploy/**", "all": "match/all"} {
		r := pause.Record{Match: match, By: "ada@laptop", Reason: "why", Since: since, Until: since.Add(time.Hour)}
		require.Equal(t, key, pause.Key(match))
		value, err := r.Value()
		require.NoError(t, err)
		read, err := pause.Parse(key, []byte(value))
		require.NoError(t, err)
		require.Equal(t, r, read)
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	const until = `"until":"2026-11-21T20:00:00Z"`
	for value, c := range map[string]struct{ key, want string }{
		"":                                 {"all", "unexpected end"},
		"2h":                               {"all", "invalid character"},
		"[]":                               {"all", "cannot unmarshal array"},
		`{"match":1}`:                      {"all", "cannot unmarshal number"},
		`{}`:                               {"all", "it has no until"},
		`{"until":"soon"}`:                 {"all", "cannot parse"},
		`{"until":"0000-01-01T00:00:00Z"}`: {"all", "it has no until"},
		`{` + until + `}`:                  {"ALL", `its key is not that of its match ""`},
		`{"match":"a/**",` + until + `}`:   {"all", `its key is not that of its match "a/**"`},
		`{"match":"b",` + until + `}`:      {"match/a", `its key is not that of its match "b"`},
		`{"match":"{a",` + until + `}`:     {"match/{a", `"{a" is not a valid pattern`},
		`{"match":"/a",` + until + `}`:     {"match//a", `"/a" matches no lock`},
		`{"reason":"` + strings.Repeat("x", 8193):                       {"all", "it is too long"},
		`{"match":"` + strings.Repeat("{a,a}", 11) + `",` + until + `}`: {"match/" + strings.Repeat("{a,a}", 11), "at most 500 bytes and 10 commas"},
	} {
		_, err := pause.Parse(c.key, []byte(value))
		require.ErrorContains(t, err, c.want, "%.100s", value)
		require.Less(t, len(err.Error()), 1000)
	}
	r, err := pause.Parse("all", []byte(`{"by":"`+strings.Repeat("b", 300)+`","reason":"`+strings.Repeat("r", 600)+`","more":true,`+until+`}`))
	require.NoError(t, err, "a later version may write more")
	require.Len(t, r.By, 200+len("…"))
	require.Len(t, r.Reason, 500+len("…"))
}

func TestTheLongestRecordCanBeRead(t *testing.T) {
	match, until := strings.Repeat("<", 500), time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)
	r := pause.Record{Match: match, By: strings.Repeat("<", 200), Reason: strings.Repeat("<", pause.MaxReason), Since: until, Until: until}
	value, err := r.Value()
	require.NoError(t, err)
	read, err := pause.Parse(pause.Key(match), []byte(value))
	require.NoError(t, err)
	require.Equal(t, r, read)
}

func TestCheckMatch(t *testing.T) {
	for _, match := range []string{"a", "deploy/**", "a/{b,c}/*", "**", "a,b"} {
		require.NoError(t, pause.CheckMatch(match), match)
	}
	for _, match := range []string{"", "[", "a/", "\xff", strings.Repeat("a", 501), strings.Repeat(",", 11)} {
		require.Error(t, pause.CheckMatch(match), match)
	}
}
