package page

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

func TestHeldFor(t *testing.T) {
	h := NewHistory(api.History{Now: noon()})
	for want, p := range map[string]api.Period{
		"":              {},
		"10m00s":        acquired(10*time.Minute, api.Period{}),
		"6m00s":         acquired(10*time.Minute, api.Period{Ended: &api.Ended{Moment: api.Moment{At: ago(4 * time.Minute)}}}),
		"at least 7s":   acquired(time.Minute, api.Period{Ended: &api.Ended{After: ago(53 * time.Second), Before: noon()}}),
		"at most 1m00s": acquired(time.Minute, api.Period{Ended: &api.Ended{Before: noon()}}),
	} {
		require.Equal(t, want, h.HeldFor(p))
	}
	require.Empty(t, h.HeldFor(acquired(time.Minute, api.Period{Ended: &api.Ended{Moment: api.Moment{At: ago(time.Hour)}}})), "clocks that contradict each other")
	require.Empty(t, h.HeldFor(acquired(-time.Minute, api.Period{})))
}

func TestHistory(t *testing.T) {
	p := api.Period{Renewals: make([]api.Renewal, 3), MoreRenewals: 7}
	h := NewHistory(api.History{Now: noon(), Periods: []api.Period{p}})
	require.Same(t, &h.Periods[0], h.Present())
	require.Equal(t, "Renewals of the present holder the newest 3, with the margin that each left; 7 older ones are not shown",
		text(t, render(t, Lock{Name: "a", History: h}, noon()), `id="renewals">`, "</summary>"))
	require.Nil(t, h.Last())
	h.Periods[0].Ended = &api.Ended{}
	require.Nil(t, h.Present())
	require.Same(t, &h.Periods[0], h.Last())
	require.Nil(t, NewHistory(api.History{}).Present())
	require.Nil(t, NewHistory(api.History{}).Last())
}

func TestEndings(t *testing.T) {
	require.Equal(t, "held", ending(nil))
	words := map[string]bool{}
	for _, e := range []api.Ended{
		{How: api.EndReleased}, {How: api.EndExpired}, {How: api.EndExpired, By: api.Self}, {How: api.EndManual}, {How: api.EndLate},
		{How: api.EndRemoved}, {How: api.EndOverwritten},
	} {
		words[ending(&e)] = true
	}
	require.Len(t, words, 7)
}
