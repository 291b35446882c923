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
		{How: api.EndReleased}, {How: api.EndExpired}, {How: api.EndManual}, {How: api.EndLate},
		{How: api.EndRemoved}, {How: api.EndOverwritten},
	} {
		words[ending(&e)] = true
	}
	require.Len(t, words, 6)
}

// noon is when the histories of these tests were read.
func noon() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

func ago(d time.Duration) time.Time { return noon().Add(-d) }

func acquired(d time.Duration, p api.Period) api.Period {
	p.Acquired.At = ago(d)
	return p
}

func TestTimeline(t *testing.T) {
	h := api.History{Now: noon(), Periods: []api.Period{
		acquired(10*time.Minute, api.Period{Renewals: []api.Renewal{{Moment: api.Moment{At: ago(5 * time.Minute)}}, {}}}),
		acquired(40*time.Minute, api.Period{Ended: &api.Ended{How: api.EndExpired, Moment: api.Moment{At: ago(20 * time.Minute)}}}),
		acquired(100*time.Minute, api.Period{Ended: &api.Ended{How: api.EndReleased, After: ago(80 * time.Minute), Before: ago(50 * time.Minute)}}),
	}}
	got := newTimeline(&h)
	require.Equal(t, timeline{
		From: ago(100 * time.Minute), To: noon(),
		Bars: []bar{
			{N: 1, X: 90, Known: 10, End: 100, How: "held"},
			{N: 2, X: 60, Known: 20, End: 80, How: "expired"},
			{N: 3, X: 0, Known: 20, End: 20, Unsure: 30, How: "released"},
		},
		Ticks: []percent{95},
	}, got)
	require.Equal(t, "0.30%", minWidth.String())
}

// No time in a history can draw outside of the picture, or before an older period.
func TestTimelineOfClocksThatAreWrong(t *testing.T) {
	ended := func(e api.Ended) *api.Ended { return &e }
	for name, h := range map[string]api.History{
		"the future": {Periods: []api.Period{acquired(-time.Hour, api.Period{}), acquired(time.Hour, api.Period{Ended: ended(api.Ended{Before: ago(-time.Hour)})})}},
		"no times":   {Periods: []api.Period{{}, {Ended: &api.Ended{}}, {}}},
		"an end before the beginning": {Periods: []api.Period{
			acquired(time.Minute, api.Period{Ended: ended(api.Ended{Moment: api.Moment{At: ago(time.Hour)}})}),
			acquired(time.Hour, api.Period{Ended: ended(api.Ended{After: ago(2 * time.Hour), Before: ago(3 * time.Hour)})}),
		}},
		"an older one begins later": {Periods: []api.Period{acquired(time.Hour, api.Period{}), acquired(time.Minute, api.Period{Ended: &api.Ended{}})}},
		"a renewal before the acquisition": {Periods: []api.Period{
			acquired(time.Minute, api.Period{Renewals: []api.Renewal{{Moment: api.Moment{At: ago(time.Hour)}}, {Moment: api.Moment{At: ago(-time.Hour)}}}}),
		}},
	} {
		h.Now = noon()
		drawn := newTimeline(&h)
		require.Len(t, drawn.Bars, len(h.Periods), name)
		before := percent(100)
		for _, b := range drawn.Bars {
			require.LessOrEqual(t, b.X, before, name)
			for _, p := range []percent{b.X, b.Known, b.Unsure, b.End, b.End + b.Unsure, b.X + b.Known} {
				require.GreaterOrEqual(t, p, percent(0), name)
				require.LessOrEqual(t, p, percent(100), name)
			}
			before = b.X
		}
		for _, p := range drawn.Ticks {
			require.GreaterOrEqual(t, p, percent(0), name)
			require.LessOrEqual(t, p, percent(100), name)
		}
		require.False(t, drawn.From.IsZero(), name)
	}
	require.Zero(t, newTimeline(&api.History{Now: noon()}))
}

func TestTimelineIsBounded(t *testing.T) {
	h := api.History{Now: noon()}
	for i := range 10 * maxBars {
		renewed := api.Renewal{Moment: api.Moment{At: ago(time.Duration(i) * time.Minute)}}
		h.Periods = append(h.Periods, acquired(time.Duration(i+1)*time.Minute, api.Period{Renewals: []api.Renewal{renewed, renewed, renewed, renewed, renewed, renewed, renewed}}))
	}
	got := newTimeline(&h)
	require.Len(t, got.Bars, maxBars)
	require.Len(t, got.Ticks, maxTicks)
}
