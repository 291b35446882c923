package live

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func TestAStreamBeginsWithTheWindowAndFollowsIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for _, name := range []string{"b", "c", "d", "e"} {
			w.put(name, "held")
		}
		c := w.open("", "")
		require.Equal(t, http.StatusOK, c.code)
		require.Equal(t, []string{"reset", "status"}, c.got())
		require.Equal(t, "b c d", c.names())
		require.Equal(t, 4, c.matched)

		w.put("a", "expired")
		time.Sleep(time.Second)
		require.Equal(t, []string{"gone", "lock", "matched"}, c.got())
		require.Equal(t, "a b c", c.names())
		require.Equal(t, 5, c.matched)

		w.release("b")
		time.Sleep(time.Second)
		require.Equal(t, []string{"gone", "lock", "matched"}, c.got())
		require.Equal(t, "a c d", c.names())

		w.put("z", "held") // beyond the window
		time.Sleep(time.Second)
		require.Equal(t, []string{"matched"}, c.got())
		w.put("z", "held", func(l *api.Lock) { l.Status = "half done" })
		time.Sleep(time.Second)
		require.Empty(t, c.got())
	})
}

func TestFilters(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		w.put("b", "overdue")
		held, late := w.open("state=held", ""), w.open("state=overdue&state=expired", "")
		require.Equal(t, "a", held.names())
		require.Equal(t, "b", late.names())
		w.put("a", "expired")
		time.Sleep(time.Second)
		require.Empty(t, held.names())

		require.Equal(t, "a b", late.names())
	})
}

// All streams are brought up to date by one pass, and equal queries share a view.
func TestManyClientsShareAPass(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		var all []*client
		for i := range 60 {
			all = append(all, w.open([]string{"", "q=a", "state=held&state=expired", "state=expired&state=held"}[i%4], ""))
		}
		time.Sleep(time.Second)
		before := w.scans()
		w.put("a b", "held")
		time.Sleep(time.Minute)
		require.Equal(t, before+1, w.scans())
		require.Len(t, w.passes[before], 3)
		for _, c := range all {
			require.Equal(t, "a a b", c.names())
		}
	})
}

// Whoever looks at silent holders is not shown the locks of others who look at all.
func TestQueriesThatDifferShareNoView(t *testing.T) {
	h := New(&source{}, (&etcdtest.Log{}).Logger())
	views := map[*view]bool{}
	join := func(q api.Query) {
		v, err := h.join(q, JSON())
		require.NoError(t, err)
		require.False(t, views[v], "%+v", q)
		views[v] = true
	}
	join(api.Query{})
	for i := range reflect.TypeFor[api.Query]().NumField() {
		var q api.Query
		switch f := reflect.ValueOf(&q).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int:
			f.SetInt(1)
		default:
			f.Set(reflect.ValueOf([]string{"x"}))
		}
		join(q)
	}
}

// An event is encoded once in each format, however many clients get it.
func TestFormatsShareAPassButNoView(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		var encoded []string
		other := Format{"other", func(q api.Query, window api.LockPage, e api.Event) ([]byte, error) {
			require.Equal(t, 3, q.Limit)
			if e.Type == api.EventLock {
				require.Len(t, window.Locks, 2, "the window is the new one")
			}
			encoded = append(encoded, e.Type)
			return JSON().Encode(q, window, e)
		}}
		json := w.open("", "")
		w.format = other
		var others []*client
		for range 50 {
			others = append(others, w.open("", ""))
		}
		require.Equal(t, []string{"reset", "status"}, others[49].got())
		w.open("", json.id).close()
		encoded = nil
		scans := w.scans()
		w.put("b", "held")
		time.Sleep(time.Second)
		require.Equal(t, scans+1, w.scans())
		require.Equal(t, []string{"lock", "matched"}, encoded)
		for _, c := range append(others, json) {
			require.Equal(t, "a b", c.names())
		}
		require.Len(t, w.hub.views, 2)
		require.Equal(t, []string{"reset", "status"}, w.open("", json.id).got(), "the id is that of another format")
	})
}

// Whoever watches a cluster in which nothing happens costs no scan.
func TestNothingIsScannedUnlessSomethingChangesAndSomebodyLooks(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		w.put("undated", "undated", func(l *api.Lock) { l.Explanation = "is never removed automatically" })
		time.Sleep(time.Minute)
		require.Zero(t, w.scans(), "nobody looks")
		c := w.open("", "")
		time.Sleep(time.Second)
		scans := w.scans()
		require.LessOrEqual(t, scans, 2)
		time.Sleep(time.Hour)
		require.Equal(t, scans, w.scans(), "nothing changes")
		require.Equal(t, 361, c.beats)
		c.close()
		w.put("a", "overdue")
		time.Sleep(time.Minute)
		require.Equal(t, scans, w.scans(), "nobody looks any more")
	})
}

// Removals need the table more than pages do.
func TestPassesAreASmallShareOfTheTime(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.open("", "")
		for _, c := range []struct {
			takes, blocks time.Duration
			passes        float64
		}{
			{100 * time.Millisecond, 100 * time.Millisecond, 60 / 2.1},
			{100 * time.Millisecond, 50 * time.Millisecond, 60 / 1.1},
			{100 * time.Millisecond, time.Millisecond, 60 / 0.4},
			{0, 0, 60 / minRest.Seconds()},
		} {
			w.change(func(s *source) { s.takes, s.blocks = c.takes, c.blocks })
			time.Sleep(time.Minute)
			start, scans := time.Now(), w.scans()
			for time.Since(start) < time.Minute {
				w.put("a", "held", func(l *api.Lock) { l.Revision = time.Now().UnixNano() })
				time.Sleep(10 * time.Millisecond)
			}
			require.InEpsilon(t, c.passes, w.scans()-scans, 0.2)
		}
	})
}

// So many bytes for each of many clients would take the processors from removals.
func TestClientsAreNotSentMoreThanTheRate(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		for range 10 {
			w.open("", "")
		}
		big := func(l *api.Lock) { l.Purpose, l.Revision = strings.Repeat("x", maxRate/10/20), time.Now().UnixNano() }
		start, scans := time.Now(), w.scans()
		for time.Since(start) < 2*time.Second {
			w.put("a", "held", big)
			time.Sleep(10 * time.Millisecond)
		}
		require.InDelta(t, 20*2, w.scans()-scans, 4)
		for time.Since(start) < 4*time.Second {
			w.put("a", "held", big)
			w.put("b", "held", big)
			w.put("c", "held", big)
			time.Sleep(10 * time.Millisecond)
		}
		require.InDelta(t, 20*2+20*2/3, w.scans()-scans, 6)
	})
}

// A new query does not wait for the pause, but has one of its own.
func TestANewQueryIsAnsweredSoon(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.takes, w.blocks = time.Second, time.Second
		w.put("a", "held")
		start := time.Now()
		w.open("", "")
		require.Equal(t, time.Second, time.Since(start))
		w.put("b", "held")
		time.Sleep(time.Second + time.Millisecond) // a pass of all views has just begun and ended
		start = time.Now()
		for i := range 5 {
			require.Equal(t, "a", w.open(fmt.Sprintf("q=a&state=held&state=%d", i), "").names())
		}
		require.Less(t, time.Since(start), 5*(fillFactor+2)*time.Second)
		require.GreaterOrEqual(t, time.Since(start), 4*fillFactor*time.Second)
	})
}

func TestAStreamLastsAndHasAHeartbeat(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.put("a", "held")
		c := w.open("", "")
		time.Sleep(10*time.Minute + time.Second)
		require.False(t, c.hasEnded())
		require.Equal(t, 61, c.beats)
		require.Equal(t, time.Now().Add(-time.Second).UTC().Format("2006-01-02T15:04:05.000Z"), c.beaten, "it has the time")
		w.put("b", "held")
		time.Sleep(time.Second)
		require.Equal(t, "a b", c.names())
	})
}

func TestResume(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		w.put("b", "held")
		c := w.open("", "")
		c.close()
		w.release("a")
		w.put("c", "held")
		time.Sleep(idleTime / 2)

		again := w.open("", c.id)
		time.Sleep(time.Second)
		require.Equal(t, []string{"status", "gone", "lock"}, again.got())
		other := w.open("q=b", c.id)
		require.Equal(t, []string{"reset", "status"}, other.got(), "the id is that of another view")
		for _, id := range []string{"", "x", again.view() + "-", again.view() + "-99", again.view() + "--1"} {
			require.Equal(t, []string{"reset", "status"}, w.open("", id).got(), id)
		}
		require.Equal(t, []string{"status"}, w.open("", again.id).got(), "nothing happened")

		other.close()
		time.Sleep(idleTime + 2*interval)
		require.Equal(t, []string{"reset", "status"}, w.open("q=b", other.id).got(), "the view was dropped")
	})
}

// A view that nobody looked at is brought up to date before it is seen.
func TestAViewThatWasIdle(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		c := w.open("", "")
		w.takes = time.Second
		w.put("b", "held")
		time.Sleep(w.takes / 2) // during a pass
		c.close()
		time.Sleep(w.takes)
		for _, name := range []string{"A", "B"} {
			w.put(name, "held")
			c = w.open("", "")
			require.Contains(t, c.names(), name)
			time.Sleep(time.Minute)
			require.Equal(t, []string{"reset", "status"}, c.got())
			c.close()
		}
	})
}

func (c *client) view() string {
	view, _, _ := strings.Cut(c.id, "-")
	return view
}

// A client that reads slowly gets the window again; one that does not read is dropped.
func TestSlowReaders(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.put("a", "held")
		fast, slow, stuck := w.open("", ""), w.openSlow("", ""), w.openSlow("", "")
		const n = 40
		big := strings.Repeat("x", 2*maxRing/n)
		for i := range n {
			w.put("a", "held", func(l *api.Lock) { l.Purpose, l.Revision = big, int64(i) })
			time.Sleep(80 * time.Millisecond)
		}
		synctest.Wait()
		require.Len(t, w.hub.views, 1)
		for _, v := range w.hub.views {
			require.LessOrEqual(t, v.ring.bytes, maxRing)
			require.EqualValues(t, n+1, v.ring.count, "the window is not in the ring")
		}
		go slow.read()
		require.Equal(t, "a", slow.names())
		require.EqualValues(t, n-1, slow.shown["a"].Revision)
		types := slow.got()
		require.Equal(t, 2, strings.Count(strings.Join(types, " "), "reset"), types)
		require.Less(t, len(types), n)
		require.Len(t, fast.got(), n+2)

		time.Sleep(writeTimeout)
		require.Equal(t, 2, w.clients(), "it does not read")
		go stuck.read()
		require.True(t, stuck.hasEnded())
		require.False(t, slow.hasEnded())
		require.False(t, fast.hasEnded())
	})
}

// When all of a large window changes, clients get it as a whole.
func TestALargeChangeIsAReset(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		big := func(l *api.Lock) { l.Purpose = strings.Repeat("x", 100<<10) }
		w.put("a", "held", big)
		c := w.open("", "")
		c.got()
		for _, name := range []string{"a", "b", "c"} {
			w.put(name, "overdue", big)
		}
		time.Sleep(time.Second)
		require.Equal(t, []string{"reset", "status"}, c.got())
		require.Equal(t, "a b c", c.names())
	})
}

func TestBounds(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		var all []*client
		for i := range maxViews {
			all = append(all, w.open(fmt.Sprintf("q=%d", i), ""))
		}
		require.Equal(t, http.StatusServiceUnavailable, w.open("q=another", "").code)
		all[7].close()
		time.Sleep(time.Second)
		all[3].close()
		require.Equal(t, http.StatusOK, w.open("q=another", "").code, "one was idle")
		require.Equal(t, []string{"status"}, w.open("q=3", all[3].id).got(), "not the one that was idle for longer")
		for w.clients() < maxClients {
			require.Equal(t, http.StatusOK, w.open("q=1", "").code)
		}
		require.Equal(t, http.StatusServiceUnavailable, w.open("q=1", "").code)
		all[1].close()
		require.Equal(t, http.StatusOK, w.open("q=1", "").code)
	})
}

func TestStopEndsStreamsAtOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.put("a", "held")
		c, start := w.open("", ""), time.Now()
		w.stop()
		require.True(t, c.hasEnded())
		require.Equal(t, http.StatusServiceUnavailable, w.open("q=another", "").code)
		require.Zero(t, time.Since(start))
		require.Zero(t, w.clients())
	})
}

// The status is sent when it has changed, at most once a second.
func TestStatus(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		c := w.open("", "")
		require.Equal(t, []string{"reset", "status"}, c.got())
		time.Sleep(time.Minute)
		require.Empty(t, c.got())
		for i := range 100 {
			w.change(func(s *source) { s.status.Backlog = i + 1 })
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		require.InDelta(t, 10, len(c.got()), 1)
		synctest.Wait()
		require.Equal(t, 100, c.daemon.Backlog)
	})
}

// What two clocks read one after the other is not a change.
func TestJitterIsNoChange(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		due, missed := time.Now().Add(time.Hour), 0
		put := func(d time.Duration, offset float64) {
			margin := 0.5 // a pointer of its own each time, as the table makes it
			w.put("a", "held", func(l *api.Lock) {
				l.Due, l.ClockOffset, l.Margin = due.Add(d), offset, &margin
				l.Rhythm = &api.Rhythm{RenewedAt: due.Add(d), Interval: 40, Missed: missed}
			})
			time.Sleep(time.Second)
		}
		put(0, 0)
		c := w.open("", "")
		c.got()
		for range 3 {
			put(jitter, 0.05)
			put(-jitter, -0.05)
		}
		require.Empty(t, c.got())
		put(jitter+1, 0)
		require.Equal(t, []string{"lock"}, c.got())
		put(jitter, 5)
		require.Equal(t, []string{"lock"}, c.got())
		missed = 1
		put(jitter, 5)
		require.Equal(t, []string{"lock"}, c.got())
	})
}

// What is said of a lock that waits for its removal changes with time, and with holds and pauses.
func TestExplanationsAreRefreshed(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		explain := func(words string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.locks["a"] = api.Lock{Name: "a", State: "expired", Explanation: words, Due: time.Now()}
		}
		explain("waits")
		c := w.open("", "")
		c.got()
		explain("is due since 12:00")
		time.Sleep(refreshAfter + 2*interval)
		require.Equal(t, []string{"lock"}, c.got())
		explain("is due; removals on hold")
		w.mu.Lock()
		w.status.Holds = []api.Hold{{Hold: "alarm"}}
		w.mu.Unlock()
		time.Sleep(2 * interval)
		require.ElementsMatch(t, []string{"status", "lock"}, c.got())
		require.Equal(t, "is due; removals on hold", c.shown["a"].Explanation)
	})
}

// Names that are too long, or not UTF-8, may look the same.
func TestNamesThatLookTheSame(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		same := func(urgency string) func(*api.Lock) {
			return func(l *api.Lock) { l.Name, l.Urgency = "\uFFFD", urgency }
		}
		w.put("1", "held", same("1"))
		w.put("2", "held", same("2"))
		c := w.open("", "")
		require.Equal(t, "\uFFFD", c.names())
		c.got()
		for range 10 {
			w.put("z", "held")
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{"lock", "matched"}, c.got())
	})
}

func TestAPassThatFailsIsRepeated(t *testing.T) {
	inBubble(t, false, func(t *testing.T, w *world) {
		w.put("a", "held")
		c := w.open("", "")
		w.fails = http.ErrHandlerTimeout
		w.put("b", "held")
		time.Sleep(10 * time.Second)
		require.Equal(t, "a", c.names())
		require.InDelta(t, 10, len(w.log.Lines("cannot update event streams")), 2)
		w.mu.Lock()
		w.fails = nil
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		require.Equal(t, "a b", c.names())
		synctest.Wait()
	})
}
