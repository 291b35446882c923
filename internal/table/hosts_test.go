package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

func TestHostClocks(t *testing.T) {
	h := make(hosts)
	require.Equal(t, api.Clock{Skewed: []api.HostClock{}}, h.clocks(0, time.Second, 9))
	for i, off := range []time.Duration{0, 2, -2, 3, -3, 40, -50} {
		h.measured(fmt.Sprint("h", i), off*time.Second, instant(i))
	}
	h.measured("", time.Hour, 0)
	require.Equal(t, api.Clock{Hosts: 7, Skewed: []api.HostClock{
		{Hostname: "h6", Offset: -50}, {Hostname: "h5", Offset: 40}, {Hostname: "h3", Offset: 3}, {Hostname: "h4", Offset: -3},
	}}, h.clocks(10, 2*time.Second, 9), "the worst first, then by name; 2 s are within the tolerance")
	require.Len(t, h.clocks(10, 2*time.Second, 2).Skewed, 2)
	require.Empty(t, h.clocks(10, 2*time.Second, 0).Skewed)
	h.measured("h6", 5*time.Second, 11)
	require.EqualValues(t, -2, h.clocks(11, time.Minute, 0).Offset, "the newest measurement counts")
	h.shift(-time.Minute)
	require.EqualValues(t, 58, h.clocks(11, time.Minute, 0).Offset)
}

func TestHostClocksAreForgottenAfterAnHour(t *testing.T) {
	h := make(hosts)
	h.measured("old", time.Minute, 0)
	h.measured("new", time.Second, 1)
	require.Equal(t, 2, h.clocks(instant(hostMemory), time.Second, 0).Hosts)
	require.Equal(t, api.Clock{Hosts: 1, Skewed: []api.HostClock{}}, h.clocks(instant(hostMemory)+1, time.Second, 9))
	require.Len(t, h, 1)
}

func TestTwoHostsDoNotMeasureTheClockOfTheDaemon(t *testing.T) {
	h := make(hosts)
	for i, want := range []float64{0, 0, -1} {
		h.measured(fmt.Sprint(i), time.Second, 0)
		require.Equal(t, want, h.clocks(0, time.Minute, 0).Offset, "of %d hosts", i+1)
	}
}

func TestHostClocksAreBounded(t *testing.T) {
	h := make(hosts)
	for i := range maxHosts + 10 {
		h.measured(fmt.Sprint(i), time.Second, 0)
	}
	require.Len(t, h, maxHosts)
	h.measured("0", time.Minute, 0)
	require.Equal(t, time.Minute, h["0"].offset, "one that is known is measured again")
}

func TestStatsHaveTheHostsClocks(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i, off := range []holder{0, slow, holder(5 * time.Second)} {
			f := off.acquires(time.Hour)
			f["hostname"] = fmt.Sprint("h", i)
			w.live(w.put(fmt.Sprint(i), f))
		}
		s, err := w.Stats(w.ctx, 1)
		require.NoError(t, err)
		require.Equal(t, api.Clock{Hosts: 3, Skewed: []api.HostClock{{Hostname: "h1", Offset: -90}}}, s.Clocks)
		w.clock(time.Hour)
		require.EqualValues(t, 3600, w.stats().Clocks.Offset, "they shift with our wall clock")
		w.pass(hostMemory + 1)
		require.Zero(t, w.stats().Clocks.Hosts)
	})
}

// History F3: events that waited while this process was stopped show no clock.
func TestS2_LateKnowledgeShowsNoHostsClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var waited []Event
		for i := range 4 {
			f := fields(time.Minute, time.Minute)
			f["hostname"] = fmt.Sprint("h", i)
			waited = append(waited, w.put(fmt.Sprint(i), f)...)
		}
		w.pass(8 * time.Second)
		w.replay(waited)
		require.Zero(t, w.stats().Clocks.Hosts)
		for _, name := range w.names() {
			require.False(t, w.observation(name).Measured)
		}
	})
}
