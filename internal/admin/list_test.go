package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
)

func (w *world) list(f admin.Filter) (*admin.Listing, []string) {
	w.t.Helper()
	require.NoError(w.t, f.Validate())
	l, err := w.List(w.t.Context(), f)
	require.NoError(w.t, err)
	names := []string{}
	for k := range l.Locks() {
		names = append(names, k.Name)
	}
	require.Len(w.t, names, l.Len())
	return l, names
}

func TestList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, names := w.list(admin.Filter{})
	require.Empty(t, names)
	require.Zero(t, l.Total)
	require.Equal(t, "/mutexes/", l.Prefix)

	// As a name, "a!" is after "a"; as a key, it is before "a/alert_at".
	w.take("a!", time.Hour, 2*time.Hour)
	w.take("a", -time.Minute, time.Hour)
	w.take("a/b", -time.Hour, -time.Minute)
	w.Set("undated", "uuid", "u")
	w.Set("malformed", "uuid", "u", "auto_unlock_at", "soon")
	w.Set("orphaned", "auto_unlock_at", in(0))
	w.Set("\xff", "uuid", "u")
	w.Set("evil\n\x1b[2J", "uuid", "u", "hostname", "worker-1", "auto_unlock_at", in(time.Hour))
	resp, err := w.Client.Put(t.Context(), "/other", "x")
	require.NoError(t, err)

	l, names = w.list(admin.Filter{})
	require.Equal(t, []string{"/\uFFFD/uuid", "a", "a!", "a/b", "evil\n\x1b[2J", "malformed", "orphaned", "undated"}, names)
	require.Equal(t, 8, l.Total)
	require.Equal(t, 8, l.Matched)
	require.Equal(t, resp.Header.Revision, l.Revision)
	require.WithinDuration(t, time.Now(), l.At, time.Minute)
	var states []string
	for k := range l.Locks() {
		states = append(states, k.State)
	}
	require.Equal(t, []string{"malformed", "overdue", "held", "expired", "held", "malformed", "orphaned", "undated"}, states)
	first := slices.Collect(l.Locks())[1]
	require.Equal(t, api.Lock{Name: "a", State: "overdue", UUID: "u-a", Hostname: "worker-1", Owner: "billing", LockedAt: first.LockedAt,
		AlertAt: first.AlertAt, AutoUnlockAt: first.AutoUnlockAt, Token: first.Token, Revision: first.Token, Keys: 6}, first)

	for want, f := range map[string]api.Query{
		"a! evil\n\x1b[2J undated": {States: []string{"undated", "held"}},
		"a a! a/b evil\n\x1b[2J":   {Hostname: "worker-1"},
		"":                         {Hostname: "worker"},
		"a a!":                     {Match: "a*"},
		"a a! a/b":                 {Owner: "billing"},
		"a a/b":                    {Match: "a/**"},
		"a":                        {Match: "{a,b}"},
		"a/b":                      {Match: "**/b", Hostname: "worker-1", States: []string{"expired", "held"}},
		"a/b evil\n\x1b[2J":        {Match: "{a/b,evil*}"},
	} {
		l, names := w.list(admin.Filter{Query: f})
		require.Equal(t, want, strings.Join(names, " "), f)
		require.Equal(t, 8, l.Total)
		require.Equal(t, len(names), l.Matched)
	}
	l, names = w.list(admin.Filter{Query: api.Query{Limit: 3}})
	require.Equal(t, []string{"/\uFFFD/uuid", "a", "a!"}, names)
	require.Equal(t, 8, l.Matched)
	_, names = w.list(admin.Filter{Query: api.Query{Limit: 8}})
	require.Len(t, names, 8)
}

func TestListOfMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 120 {
		var fields []string
		for j := range 10 {
			fields = append(fields, fmt.Sprintf("%02d/uuid", j), "u")
		}
		w.Set(fmt.Sprintf("many/%03d", i), fields...)
	}
	_, names := w.list(admin.Filter{})
	require.Len(t, names, 1200)
	require.True(t, slices.IsSorted(names))
	require.Len(t, slices.Compact(names), 1200)
	l, _ := w.list(admin.Filter{})
	for range l.Locks() {
		break // whoever has enough may stop
	}
}

func TestFilterIsChecked(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]api.Query{
		`--state: must be one of held, overdue, expired, undated, malformed, orphaned, not "Held"`: {States: []string{"overdue", "Held"}},
		`--match: "[a" is not a valid pattern`:                                                     {Match: "[a"},
		"--limit: must be at least 0, not -1":                                                      {Limit: -1},
	} {
		require.EqualError(t, admin.Filter{Query: f}.Validate(), want)
	}
}
