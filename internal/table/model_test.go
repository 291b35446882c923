package table

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// model drives a core at random and knows what must hold.
type model struct {
	*world
	t *rapid.T
	// lost: events did not reach the core, which only a listing repairs.
	lost bool
	last map[*entry]seen
	// out are the tokens of the locks that were taken and not answered.
	out map[string]int64
}

// seen is a lock as it was after the step before.
type seen struct {
	token    int64
	deadline lock.Timestamp
	due      instant
	phase    phase
}

// bubble hides Deadline, which must not be asked for inside one.
type bubble struct{ testing.TB }

// TestTableIsConsistentForAnyHistory runs random histories.
func TestTableIsConsistentForAnyHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(t *rapid.T) {
			m := &model{world: newWorld(t), t: t, last: make(map[*entry]seen), out: make(map[string]int64)}
			m.world.listing(false)
			t.Repeat(map[string]func(*rapid.T){
				"put":      m.doPut,
				"acquire":  m.doAcquire,
				"delete":   m.doDelete,
				"batch":    m.doBatch,
				"lose":     m.doLose,
				"relist":   func(*rapid.T) { m.doList(false) },
				"resync":   func(*rapid.T) { m.doList(true) },
				"overlap":  m.doOverlap,
				"pass":     m.doPass,
				"step":     m.doStep,
				"take":     m.doTake,
				"postpone": m.doPostpone,
				"forget":   m.doForget,
				"":         m.holds,
			})
		})
	})
}

var names = rapid.SampledFrom([]string{"a", "b", "c", "a/b", "/bad"})

func (m *model) duration(label string) time.Duration {
	return time.Duration(rapid.IntRange(-20, 100).Draw(m.t, label)) * time.Second
}

func (m *model) change() []Event {
	name := names.Draw(m.t, "name")
	if rapid.Bool().Draw(m.t, "delete") {
		if rapid.Bool().Draw(m.t, "all") {
			return m.del(name)
		}
		return m.del(name, rapid.SampledFrom([]string{"uuid", "auto_unlock_at", "locked_at", "x"}).Draw(m.t, "field"))
	}
	field := rapid.SampledFrom([]string{"alert_at", "auto_unlock_at", "purpose", "hostname", "alive_at", "x"}).Draw(m.t, "field")
	value := "garbage"
	if rapid.IntRange(0, 9).Draw(m.t, "garbage") > 0 {
		value = at(m.duration("at"))
	}
	return m.put(name, map[string]string{field: value})
}

func (m *model) doPut(*rapid.T) { m.apply(m.change(), true) }

// doAcquire does what a client does: nothing where there is a uuid.
func (m *model) doAcquire(*rapid.T) { m.apply(m.taking(), true) }

func (m *model) taking() []Event {
	name := names.Draw(m.t, "name")
	if m.token(name) != 0 {
		return nil
	}
	return m.put(name, fields(m.duration("alert"), m.duration("auto")))
}

func (m *model) doDelete(*rapid.T) { m.apply(m.del(names.Draw(m.t, "name")), true) }

func (m *model) doBatch(*rapid.T) {
	var events []Event
	for range rapid.IntRange(2, 6).Draw(m.t, "n") {
		events = append(events, m.change()...)
		events = append(events, m.taking()...)
	}
	m.apply(events, true)
}

func (m *model) doLose(*rapid.T) {
	m.change()
	m.taking()
	m.lost = true
}

func (m *model) doList(resync bool) {
	drift := m.totals.drift
	m.listing(resync)
	if !m.lost || !resync {
		require.Equal(m.t, drift, m.totals.drift)
	}
	m.lost = false
	m.requireEqualsEtcd()
}

// doOverlap lists at a revision while the watch goes on.
func (m *model) doOverlap(*rapid.T) {
	drift, lost := m.totals.drift, m.lost
	m.begin(m.rev, true)
	listed := m.collect()
	for range 3 {
		m.apply(m.change(), true)
		m.apply(m.taking(), true)
	}
	m.core.list(listed)
	m.apply(m.change(), true)
	m.end()
	if !lost {
		require.Equal(m.t, drift, m.totals.drift)
		m.requireEqualsEtcd()
	}
}

func (m *model) doPass(*rapid.T) {
	time.Sleep(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(m.t, "pass")))
	m.advance()
}

func (m *model) doStep(*rapid.T) {
	m.shift += 3 * m.duration("step") // none below maxDrift, which are no steps
	m.advance()
}

func (m *model) doTake(*rapid.T) {
	now := m.now()
	for _, l := range m.take(rapid.IntRange(1, 3).Draw(m.t, "max")).Due {
		e := m.core.locks[l.Name]
		require.LessOrEqual(m.t, e.due, now.mono)
		require.True(m.t, l.Removable())
		if l.Token != 0 {
			require.LessOrEqual(m.t, l.AutoUnlockAt()+lock.Timestamp(grace), now.wall)
			require.LessOrEqual(m.t, l.Observation.Earliest, time.Duration(0))
		}
		require.GreaterOrEqual(m.t, l.Observation.Age, time.Duration(0))
		m.out[l.Name] = l.Token
	}
}

func (m *model) doPostpone(*rapid.T) {
	name := names.Draw(m.t, "name")
	delay := rapid.SampledFrom([]time.Duration{UntilModified, 0, time.Second, time.Minute}).Draw(m.t, "delay")
	token := m.token(name)
	if e := m.core.locks[name]; e != nil && e.Token == token && m.out[name] == token {
		delete(m.out, name)
	}
	m.postpone(name, token, delay)
}

func (m *model) doForget(*rapid.T) {
	if rapid.IntRange(0, 3).Draw(m.t, "forget") == 0 {
		m.forget()
		m.world.listing(false)
		m.lost = false
	}
}

func (m *model) holds(*rapid.T) {
	m.advance()
	m.world.check()
	now := m.now()
	for _, g := range m.gone {
		require.Contains(m.t, m.out, g.Name, "told once, of a lock that is out")
		require.Equal(m.t, m.out[g.Name], g.Token)
		delete(m.out, g.Name)
	}
	m.gone = nil
	this := make(map[*entry]seen)
	for name, e := range m.core.locks {
		require.Equal(m.t, e.State(now.wall), e.state, name)
		since := e.OverdueSince()
		require.Equal(m.t, since != 0 && since <= now.wall, e.overduePos != 0, name)
		if e.phase != suspended { // which stays suspended, whatever the clocks do
			require.Equal(m.t, e.Removable() && e.due <= now.mono, e.phase != waiting, name)
		}
		if e.phase == retrying {
			require.Greater(m.t, e.wake, now.mono, name)
		}
		if token, taken := m.out[name]; taken && token == 0 {
			// An orphan over which a lock came, and went, may be out or not.
		} else if taken && token == e.Token {
			require.NotZero(m.t, e.marks&unanswered, name)
		} else {
			require.Zero(m.t, e.marks&unanswered, name)
		}
		is := seen{e.Token, e.AutoUnlockAt(), e.due, e.phase}
		if was := m.last[e]; was.token != 0 && was.token == is.token && was.deadline == is.deadline {
			require.GreaterOrEqual(m.t, is.due, was.due, "%s: a deadline that stays is never due earlier", name)
		}
		this[e] = is
	}
	m.last = this
	for name := range m.out {
		// Only who took an orphan over which a lock came, or a lock whose end
		// was lost, is not told.
		if e := m.core.locks[name]; e == nil || e.marks&unanswered == 0 {
			require.True(m.t, m.out[name] == 0 || m.lost, "%s: its end was not told", name)
			delete(m.out, name)
		}
	}
}

func (m *model) requireEqualsEtcd() {
	require.Len(m.t, m.core.locks, len(m.etcd.locks))
	for _, l := range m.collect() {
		e := m.core.locks[l.Name]
		require.NotNil(m.t, e, l.Name)
		require.True(m.t, same(&e.Lock, &l), l.Name)
		require.Equal(m.t, l.Removable(), e.Removable(), l.Name)
		require.Equal(m.t, l.UUID(), e.UUID(), l.Name)
		require.Equal(m.t, l.Hostname(), e.Hostname(), l.Name)
	}
}
