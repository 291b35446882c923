package reaper

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// weather is a holdState with a clock that a test moves.
type weather struct {
	*testing.T
	state   holdState
	now     time.Time
	signals Signals
	press   Pressure
}

// newWeather is long after a start, with all well.
func newWeather(t *testing.T) *weather {
	w := &weather{T: t, now: past.Time()}
	w.state.HoldRules = HoldRules{Settle: 15 * time.Second, Freshness: 10 * time.Second,
		Storm: StormRules{MinLocks: 100, Fraction: 0.5, Hold: 2 * time.Minute}}
	w.signals = Signals{ListedAt: w.now.Add(-time.Hour), Connected: true, Probed: true}
	w.after(0)
	return w
}

// after lets time pass, in which the watch shows signs of life as long as it is
// up, and requires these holds.
func (w *weather) after(d time.Duration, want ...Hold) {
	w.Helper()
	if w.now = w.now.Add(d); w.signals.Connected {
		w.signals.Sign = w.now
	}
	w.look(want...)
}

func (w *weather) look(want ...Hold) map[Hold]string {
	w.Helper()
	found := w.state.update(w.now, w.signals, w.press)
	require.ElementsMatch(w, want, slices.Collect(maps.Keys(found)))
	for hold, words := range found {
		require.Contains(w, Holds(), hold)
		require.NotEmpty(w, words)
	}
	return found
}

func TestS3_StartingUntilSettledAfterTheListing(t *testing.T) {
	w := newWeather(t)
	w.signals.ListedAt = time.Time{}
	w.after(time.Hour, HoldStarting)
	w.signals.ListedAt = w.now
	w.after(0, HoldStarting)
	w.after(15*time.Second-1, HoldStarting)
	w.after(1)
}

// Restored from a snapshot: another listing, and another name for the hold.
func TestS3_RegressedUntilSettledAfterTheNewListing(t *testing.T) {
	w := newWeather(t)
	w.signals.ListedAt, w.signals.History = time.Time{}, 1
	w.after(time.Second, HoldRegressed)
	w.signals.ListedAt = w.now
	w.after(15*time.Second-1, HoldRegressed)
	w.after(1)
	w.signals.ListedAt, w.signals.History = time.Time{}, 2
	w.after(time.Hour, HoldRegressed)
}

func TestS3_DisconnectedUntilSettledAfterItIsBack(t *testing.T) {
	for words, fail := range map[string]func(*weather){
		"the watch is down": func(w *weather) { w.signals.Connected = false },
		"the probe fails":   func(w *weather) { w.signals.Probed = false },
	} {
		t.Run(words, func(t *testing.T) {
			w := newWeather(t)
			well := w.signals
			fail(w)
			w.after(time.Second, HoldDisconnected)
			require.Equal(t, words, w.look(HoldDisconnected)[HoldDisconnected])
			w.after(time.Hour, HoldDisconnected)
			well.Sign = w.now
			w.signals = well
			w.after(15*time.Second-1, HoldDisconnected)
			require.Contains(t, w.look(HoldDisconnected)[HoldDisconnected], "settling")
			w.after(1)
		})
	}
}

func TestS3_DisconnectedWhereTheWatchIsSilent(t *testing.T) {
	w := newWeather(t)
	w.now = w.signals.Sign.Add(10 * time.Second)
	w.look()
	w.now = w.now.Add(1)
	require.Equal(t, "the watch shows no sign of life", w.look(HoldDisconnected)[HoldDisconnected])
	w.after(15*time.Second-1, HoldDisconnected)
	w.after(1)
	w.signals.Sign = time.Time{}
	w.look(HoldDisconnected)
}

// Both must be back, and what fails in between begins the settling anew.
func TestS3_DisconnectedSettlesFromTheLastFailure(t *testing.T) {
	w := newWeather(t)
	w.signals.Connected, w.signals.Probed = false, false
	w.after(time.Second, HoldDisconnected)
	w.signals.Connected = true
	w.after(time.Minute, HoldDisconnected)
	w.signals.Probed = true
	w.after(10*time.Second, HoldDisconnected)
	w.signals.Probed = false
	w.after(time.Second, HoldDisconnected)
	w.signals.Probed = true
	w.after(15*time.Second-1, HoldDisconnected)
	w.after(1)
}

func TestS3_AlarmUntilSettledAfterItIsDisarmed(t *testing.T) {
	w := newWeather(t)
	w.signals.Alarms = []string{"NOSPACE", "CORRUPT"}
	w.after(time.Hour, HoldAlarm)
	require.Equal(t, "etcd raised NOSPACE, CORRUPT", w.look(HoldAlarm)[HoldAlarm])
	w.signals.Alarms = nil
	w.after(15*time.Second-1, HoldAlarm)
	w.after(1)
}

func TestS3_HoldsAtOnce(t *testing.T) {
	w := newWeather(t)
	w.state.DryRun = true
	w.signals.ListedAt, w.signals.Connected, w.signals.Alarms = time.Time{}, false, []string{"NOSPACE"}
	w.press = Pressure{CameDue: 100, Dated: 100, Backlog: 100}
	w.after(0, HoldStarting, HoldDisconnected, HoldAlarm, HoldStorm, HoldDryRun)
}

func TestS3_StormBeginsWithSoManyOfAll(t *testing.T) {
	for name, c := range map[string]struct {
		press Pressure
		min   int
		want  bool
	}{
		"all":                 {Pressure{100, 100, 100}, 100, true},
		"too few":             {Pressure{99, 99, 99}, 100, false},
		"half":                {Pressure{100, 200, 100}, 100, false},
		"more than half":      {Pressure{101, 201, 101}, 100, true},
		"many, of many more":  {Pressure{10_000, 100_000, 10_000}, 100, false},
		"turned off":          {Pressure{10_000, 10_000, 10_000}, 0, false},
		"one":                 {Pressure{1, 1, 1}, 1, true},
		"removed already":     {Pressure{100, 0, 0}, 100, true},
		"backlog of a start":  {Pressure{0, 1_000, 1_000}, 100, false},
		"nothing, turned off": {Pressure{}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWeather(t)
			w.state.Storm.MinLocks, w.press = c.min, c.press
			want := []Hold{}
			if c.want {
				want = append(want, HoldStorm)
			}
			w.after(time.Second, want...)
		})
	}
}

func TestS3_StormEndsAndWaitsForItsBacklog(t *testing.T) {
	w := newWeather(t)
	w.press = Pressure{CameDue: 50, Dated: 1_000, Backlog: 7} // parked, for ever
	w.after(time.Second)
	w.press = Pressure{CameDue: 600, Dated: 1_000, Backlog: 607}
	w.after(0, HoldStorm)
	w.press.CameDue = 0
	w.after(2*time.Minute-1, HoldStorm)
	w.press = Pressure{CameDue: 1_000, Dated: 1_000, Backlog: 1_007}
	w.after(1)
	for w.press.Backlog > 8 { // it is worked off, and others come due
		w.press.Backlog--
		w.after(time.Second)
	}
	w.press = Pressure{Dated: 1_000, Backlog: 7}
	w.after(time.Second)
	w.press = Pressure{CameDue: 600, Dated: 1_000, Backlog: 607}
	w.after(time.Second, HoldStorm)
	w.after(2 * time.Minute)
}

func TestS3_StormLastsWhateverHappens(t *testing.T) {
	w := newWeather(t)
	w.press = Pressure{CameDue: 100, Dated: 100, Backlog: 100}
	w.after(0, HoldStorm)
	w.press = Pressure{}
	w.after(2*time.Minute-1, HoldStorm)
	w.after(1)
}
