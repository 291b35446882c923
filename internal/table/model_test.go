package table

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// stormOfTwo is a storm of which few locks make one.
func stormOfTwo(o *Options) {
	o.Rules.Storm = config.Storm{MinLocks: 2, Fraction: 0.1, Window: time.Minute, Delay: 2 * time.Minute}
}

// model drives a table at random and knows what must hold.
type model struct {
	*world
	t *rapid.T
	// lost: events did not reach the table, which only a listing repairs.
	lost bool
	last map[string]seen
	// stepped: our wall clock stepped since the last look at the locks.
	stepped bool
	// out are the tokens of the locks that were taken and not answered.
	out map[string]int64
}

// seen is a lock as it was after the step before.
type seen struct {
	token    int64
	deadline protocol.Timestamp
	patience time.Duration
	due      time.Time // by the monotonic clock
}

// bubble hides Deadline, which must not be asked for inside one.
type bubble struct{ testing.TB }

// TestTableIsConsistentForAnyHistory runs random histories.
func TestTableIsConsistentForAnyHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(t *rapid.T) {
			m := &model{world: newWorld(t, stormOfTwo), t: t, last: make(map[string]seen), out: make(map[string]int64)}
			defer m.stop()
			m.listing(false)
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
				"outage":   m.doOutage,
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

func (m *model) doPut(*rapid.T) { m.arrive(m.change()) }

// arrive applies events, which were observed live or not.
func (m *model) arrive(events []Event) {
	if rapid.IntRange(0, 3).Draw(m.t, "late") > 0 {
		m.live(events)
		return
	}
	m.replay(events)
}

// doAcquire does what a client does: nothing where there is a uuid.
func (m *model) doAcquire(*rapid.T) { m.arrive(m.taking()) }

func (m *model) taking() []Event {
	name := names.Draw(m.t, "name")
	if m.token(name) != 0 {
		return nil
	}
	return m.put(name, fields(m.duration("alert"), m.duration("auto")))
}

func (m *model) doDelete(*rapid.T) { m.arrive(m.del(names.Draw(m.t, "name"))) }

func (m *model) doBatch(*rapid.T) {
	var events []Event
	for range rapid.IntRange(2, 6).Draw(m.t, "n") {
		events = append(events, m.change()...)
		events = append(events, m.taking()...)
	}
	m.arrive(events)
}

func (m *model) doLose(*rapid.T) {
	m.change()
	m.taking()
	m.lost = true
}

func (m *model) doList(beside bool) {
	drift := m.counted().drift
	err := m.list(beside)
	if err != nil {
		// Where an event was lost, but a later one was not, etcd may look older.
		require.True(m.t, m.lost)
		require.NoError(m.t, m.Forget(m.ctx))
		m.listing(false)
	}
	if !m.lost || !beside {
		require.Equal(m.t, drift, m.counted().drift)
	}
	m.lost = false
	m.requireEqualsEtcd()
}

// doOverlap lists at a revision while the watch continues.
func (m *model) doOverlap(*rapid.T) {
	drift, lost := m.counted().drift, m.lost
	require.NoError(m.t, m.Begin(m.ctx, m.rev, true))
	listed := m.collect()
	for range 3 {
		m.live(m.change())
		m.live(m.taking())
	}
	err := m.List(m.ctx, listed)
	require.True(m.t, err == nil || m.lost, "%v", err)
	m.live(m.change())
	require.NoError(m.t, m.End(m.ctx))
	if !lost {
		require.Equal(m.t, drift, m.counted().drift)
		m.requireEqualsEtcd()
	}
}

func (m *model) doPass(*rapid.T) {
	m.pass(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(m.t, "pass")))
}

func (m *model) doStep(*rapid.T) {
	m.stepped = true
	m.clock(time.Duration(m.ahead.Load()) + 3*m.duration("step"))
}

func (m *model) doOutage(*rapid.T) {
	m.outage(time.Duration(rapid.IntRange(3, 100).Draw(m.t, "outage")) * time.Second)
}

func (m *model) doTake(*rapid.T) {
	for _, d := range m.take() {
		require.True(m.t, d.Removable())
		require.LessOrEqual(m.t, m.due(d.Name), time.Duration(0))
		require.GreaterOrEqual(m.t, d.Observation.Age, time.Duration(0))
		m.out[d.Name] = d.Token
	}
	m.check()
}

func (m *model) doPostpone(*rapid.T) {
	name := names.Draw(m.t, "name")
	delay := rapid.SampledFrom([]time.Duration{UntilModified, 0, time.Second, time.Minute}).Draw(m.t, "delay")
	token := m.token(name)
	if item, found, _ := m.Get(m.ctx, name); found && item.Token == token && m.out[name] == token {
		delete(m.out, name)
	}
	m.postpone(name, token, delay)
}

func (m *model) doForget(*rapid.T) {
	if rapid.IntRange(0, 3).Draw(m.t, "forget") == 0 {
		require.NoError(m.t, m.Forget(m.ctx))
		m.listing(false)
		m.lost = false
	}
}

func (m *model) holds(*rapid.T) {
	m.check()
	for _, g := range m.gone() {
		token, taken := m.out[g.Name]
		if !taken || m.lost && token != g.Token {
			require.NotNil(m.t, g.Past, "reported once, of a lock that is taken or past its deadline")
			continue
		}
		require.Equal(m.t, m.out[g.Name], g.Token)
		delete(m.out, g.Name)
	}
	m.deleted = nil
	this := make(map[string]seen)
	for name, e := range m.core.locks {
		m.requirePhase(name, e)
		if e.Token != 0 && e.Removable() && e.phase != suspended {
			patience := m.core.inputs(e, m.core.clock.read()).Patience()
			is := seen{e.Token, e.AutoUnlockAt(), patience, time.Now().Add(m.due(name))}
			m.requireNoEarlier(name, is, e)
			this[name] = is
		}
	}
	m.last, m.stepped = this, false
	for name := range m.out {
		// Only who took an orphan over which a lock came, or a lock whose end
		// was lost, is not told.
		if e := m.core.locks[name]; e == nil || !e.has(unanswered) {
			require.True(m.t, m.out[name] == 0 || m.lost, "%s: its end was not reported", name)
			delete(m.out, name)
		}
	}
	m.handBack()
}

func (m *model) requirePhase(name string, e *entry) {
	if e.phase != suspended { // which stays suspended, whatever the clocks do
		require.Equal(m.t, e.Removable() && m.due(name) <= 0, e.phase != waiting, name)
	}
	if e.phase == retrying {
		require.Greater(m.t, time.Duration(e.wake), time.Since(m.core.clock.base), name)
	}
	if token, taken := m.out[name]; taken && token == 0 {
		// An orphan over which a lock came, and went, may be out or not.
	} else if taken && token == e.Token {
		require.True(m.t, e.has(unanswered), name)
	} else {
		require.False(m.t, e.has(unanswered), name)
	}
}

// requireNoEarlier holds for a deadline that stays: it comes due earlier only where our
// wall clock stepped, and then not without patience. Writes that leave the deadline as it
// is may show more of its holder.
func (m *model) requireNoEarlier(name string, is seen, e *entry) {
	was, known := m.last[name]
	learned := time.Duration(e.learned) == time.Since(m.core.clock.base)
	if !known || learned || was.token != is.token || was.deadline != is.deadline || was.patience != is.patience {
		return
	}
	floor := was.due
	if m.stepped {
		if patient := time.Now().Add(is.patience + grace); patient.Before(floor) {
			floor = patient
		}
	}
	require.False(m.t, is.due.Add(1).Before(floor), "%s: due at %s, was %s", name, is.due, was.due)
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
