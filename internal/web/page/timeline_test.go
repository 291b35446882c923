package page

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

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
