package records

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestRecordSurvives(t *testing.T) {
	t.Parallel()
	r := Record{
		Prefix: "/mutexes/", When: time.Unix(1_700_000_000, 5).UTC(),
		Forced: api.Forced{
			Name: "a/b", UUID: "u\x00", Hostname: "h", Owner: "o", Who: "ada@host", Reason: "<why> \"ü\"\n",
			Fields: []api.Field{{Name: "x", Value: "y"}}, MoreFields: 3,
		},
	}
	text := r.Encode()
	require.JSONEq(t, `{"prefix": "/mutexes/", "when": "2023-11-14T22:13:20.000000005Z", "name": "a/b", "uuid": "u\u0000", "hostname": "h",
		"owner": "o", "who": "ada@host", "reason": "<why> \"ü\"\n", "fields": [{"name": "x", "value": "y"}], "more_fields": 3}`, text,
		"what daemons and commands of other versions read")
	got, err := Parse([]byte(text))
	require.NoError(t, err)
	r.At, r.Trigger, r.By = r.When, verdict.Manual, api.Other
	require.Equal(t, r, got)
	require.Equal(t, "/audit/20231114T221320Z-2a", keyOf("/audit/", r.When, 42))
}

// Whatever the lock contains, what is most useful of it is in a record of limited size.
func TestRecordIsBounded(t *testing.T) {
	t.Parallel()
	r := Record{Forced: api.Forced{Name: "a", Who: strings.Repeat("w", 10_000), Reason: strings.Repeat("\x00", 10_000)}}
	for range 32 {
		r.Fields = append(r.Fields, api.Field{Name: strings.Repeat("\x01", lockstore.MaxName), Value: strings.Repeat("\x02", 2<<10)})
	}
	text := r.Encode()
	require.LessOrEqual(t, len(text), MaxBytes)
	got, err := Parse([]byte(text))
	require.NoError(t, err)
	require.NotEmpty(t, got.Fields)
	require.Equal(t, 32, len(got.Fields)+got.MoreFields)
	require.LessOrEqual(t, len(got.Reason), MaxText+len("…"))
}

// A record cannot claim to be another removal than the one in whose transaction it was written.
func TestParseTakesNoVerdictFromARecord(t *testing.T) {
	t.Parallel()
	r, err := Parse([]byte(`{"name": "a", "at": "2001-01-01T00:00:00Z", "when": "2023-11-14T22:13:20Z", "trigger": "expiry",
		"by": "self", "revision": 7, "verdict": {"action": "remove"}}`))
	require.NoError(t, err)
	require.Equal(t, api.Forced{Name: "a", At: r.When, Trigger: verdict.Manual, By: api.Other, Fields: []api.Field{}}, r.Forced)
}

// Any client with the right to write a record may have written it.
func TestParseRefusesAndBounds(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                                   "not a record: unexpected end of JSON input",
		"null":                               "not a record: lock name",
		"[]":                                 "not a record: json: ",
		`{"name": 1}`:                        "not a record: json: ",
		`{"name": "a//b"}`:                   "not a record: lock name",
		`{"name": "a", "when": "yesterday"}`: "not a record: parsing time",
		`{"name": "a"} {}`:                   "not a record: invalid character",
		`{"name": "a", "more_fields": -1}`:   "not a record: more_fields is -1",
		`{"name": "a", "fields": [{"name": "x"}, {"name": "y"}, {"name": "x"}]}`: `not a record: two fields have the name "x"`,
		`{"name": "a", "fields": [{"name": "x", "truncated_from_bytes": -1}]}`:   `not a record: truncated_from_bytes of field "x" is -1`,
		strings.Repeat("[", MaxBytes):                                            "not a record: ",
		strings.Repeat(" ", MaxBytes) + `{"name": "a"}`:                          "32781 bytes: a record has at most 32768",
	} {
		_, err := Parse([]byte(value))
		require.ErrorContains(t, err, want, "%.40q", value)
	}
	long, err := json.Marshal(map[string]string{"name": strings.Repeat("n", 5000), "who": strings.Repeat("ü", 5000), "hostname": strings.Repeat("h", 5000)})
	require.NoError(t, err)
	r, err := Parse([]byte(strings.Replace(string(long), "nnn", "n\xffn", 1)))
	require.NoError(t, err)
	for _, s := range []string{r.Name, r.Who, r.Hostname} {
		require.LessOrEqual(t, len(s), MaxText+len("…"))
		require.True(t, utf8.ValidString(s))
	}
}
