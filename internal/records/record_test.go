package records

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestRecordSurvives(t *testing.T) {
	t.Parallel()
	r := api.Forced{
		At: time.Unix(1_700_000_000, 5).UTC(), Name: "a/b", UUID: "u\x00", Token: 7, Hostname: "h", Owner: "o", PID: "12", Trigger: verdict.Manual,
		Who: "ada@host", Reason: "<why> \"ü\"\n", Fields: []api.Field{{Name: "x", Value: "y"}}, MoreFields: 3,
	}
	text := Encode("/mutexes/", r)
	require.JSONEq(t, `{"prefix": "/mutexes/", "when": "2023-11-14T22:13:20.000000005Z", "name": "a/b", "uuid": "u\u0000", "token": 7,
		"hostname": "h", "owner": "o", "pid": "12", "trigger": "manual", "who": "ada@host", "reason": "<why> \"ü\"\n",
		"fields": [{"name": "x", "value": "y"}], "more_fields": 3}`, text,
		"what clients, daemons and commands of other versions read")
	prefix, got, err := Parse([]byte(text), 42)
	require.NoError(t, err)
	require.Equal(t, "/mutexes/", prefix)
	r.By, r.Revision = api.Other, 42
	require.Equal(t, r, got)
	require.Equal(t, "/audit/a/b//7", keyOf("/audit/", &r))
	require.Equal(t, "/audit/x//9", keyOf("/audit/", &api.Forced{Name: "x", Revision: 9}), "of an orphan")

	decided := verdict.Decide(verdict.Inputs{Now: r.At, AutoUnlockAt: r.At.Add(-time.Minute), Removable: true, Token: 7, Mode: verdict.Enforce})
	r.Trigger, r.Who, r.Reason, r.Replica, r.Revision, r.Verdict = verdict.Expiry, "", "", "host_1", 41, &decided
	_, got, err = Parse([]byte(Encode("/mutexes/", r)), 42)
	require.NoError(t, err)
	require.Equal(t, r, got, "all inputs of the verdict")
}

// Whatever the lock contains, what is most useful of it is in a record of limited size.
func TestRecordIsBounded(t *testing.T) {
	t.Parallel()
	r := api.Forced{Name: "a", Who: strings.Repeat("w", 10_000), Reason: strings.Repeat("\x00", 10_000)}
	for range 32 {
		r.Fields = append(r.Fields, api.Field{Name: strings.Repeat("\x01", protocol.MaxName), Value: strings.Repeat("\x02", 2<<10)})
	}
	text := Encode("", r)
	require.LessOrEqual(t, len(text), MaxBytes)
	_, got, err := Parse([]byte(text), 1)
	require.NoError(t, err)
	require.NotEmpty(t, got.Fields)
	require.Equal(t, 32, len(got.Fields)+got.MoreFields)
	require.LessOrEqual(t, len(got.Reason), MaxText+len("…"))
	r.Trigger = verdict.Expiry
	require.LessOrEqual(t, len(Encode("", r)), maxAutomatic)
}

// A record of a manual unlock cannot claim to be of another removal than the one in whose transaction it was written.
func TestParseTakesNoVerdictFromAManualUnlock(t *testing.T) {
	t.Parallel()
	for _, trigger := range []string{"", `"trigger": "manual",`} {
		_, r, err := Parse([]byte(`{"name": "a", "at": "2001-01-01T00:00:00Z", "when": "2023-11-14T22:13:20Z", `+trigger+`
			"by": "self", "replica": "x", "revision": 7, "verdict": {"action": "remove"}}`), 42)
		require.NoError(t, err)
		require.Equal(t, api.Forced{Name: "a", At: time.Unix(1_700_000_000, 0).UTC(), Trigger: verdict.Manual, By: api.Other, Revision: 42, Fields: []api.Field{}}, r)
	}
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
		`{"name": "a", "when": "9999-12-31T23:00:00-01:00"}`: "not a record: when: Time.MarshalText: year outside of range",
		`{"name": "a"} {}`:                                                       "not a record: invalid character",
		`{"name": "a", "trigger": "presumed"}`:                                   `not a record: trigger is "presumed"`,
		`{"name": "a", "trigger": "expiry"}`:                                     "not a record: revision is 0, and it was written at 42",
		`{"name": "a", "trigger": "orphan", "revision": 42}`:                     "not a record: revision is 42, and it was written at 42",
		`{"name": "a", "more_fields": -1}`:                                       "not a record: more_fields is -1",
		`{"name": "a", "fields": [{"name": "x"}, {"name": "y"}, {"name": "x"}]}`: `not a record: two fields have the name "x"`,
		`{"name": "a", "fields": [{"name": "x", "truncated_from_bytes": -1}]}`:   `not a record: truncated_from_bytes of field "x" is -1`,
		strings.Repeat("[", MaxBytes):                                            "not a record: ",
		strings.Repeat(" ", MaxBytes) + `{"name": "a"}`:                          "32781 bytes: a record has at most 32768",
	} {
		_, _, err := Parse([]byte(value), 42)
		require.ErrorContains(t, err, want, "%.40q", value)
	}
	long, err := json.Marshal(map[string]string{"name": strings.Repeat("n", 5000), "who": strings.Repeat("ü", 5000), "hostname": strings.Repeat("h", 5000)})
	require.NoError(t, err)
	_, r, err := Parse([]byte(strings.Replace(string(long), "nnn", "n\xffn", 1)), 42)
	require.NoError(t, err)
	for _, s := range []string{r.Name, r.Who, r.Hostname} {
		require.LessOrEqual(t, len(s), MaxText+len("…"))
		require.True(t, utf8.ValidString(s))
	}
	_, r, err = Parse([]byte(`{"name": "a", "counted": [`+strings.Repeat("{}, ", 5000)+`{"revision": 7}]}`), 42)
	require.NoError(t, err)
	require.Len(t, r.Counted, maxCounted)
	require.Equal(t, int64(7), r.Counted[maxCounted-1].Revision)
}

// Any client may write a record: what is taken from it is bounded, can be shown, and is the same when it is written again.
func FuzzParse(f *testing.F) {
	r := api.Forced{
		At: time.Unix(1_700_000_000, 5).UTC(), Name: "a/b", UUID: "u", Token: 7, Revision: 9, Trigger: verdict.Expiry, Fields: []api.Field{{Name: "x", Value: "y"}}, Verdict: &verdict.Verdict{},
		Counted: []api.Counted{{Revision: 5, Token: 4}},
	}
	f.Add([]byte(Encode("/mutexes/", r)), int64(10))
	f.Add([]byte(`{"name":"a","trigger":"ended","token":-1,"when":"9999-12-31T23:59:59-23:00","fields":null,"more_fields":1}`), int64(1))
	f.Fuzz(func(t *testing.T, value []byte, written int64) {
		prefix, r, err := Parse(value, written)
		if err != nil {
			require.LessOrEqual(t, len(err.Error()), 3*MaxText)
			return
		}
		_, err = json.Marshal(r)
		require.NoError(t, err)
		for _, text := range []string{r.Name, r.UUID, r.Hostname, r.Owner, r.PID, r.Replica, r.Who, r.Reason} {
			require.LessOrEqual(t, len(text), MaxText+len("…"))
		}
		require.LessOrEqual(t, len(r.Counted), maxCounted)
		if text := Encode(prefix, r); len(text) <= MaxBytes {
			_, again, err := Parse([]byte(text), written)
			require.NoError(t, err)
			require.Equal(t, r.Trigger, again.Trigger)
			require.Equal(t, r.Name, again.Name)
		}
	})
}
