package table

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	grace       = 2 * time.Second
	orphanGrace = time.Minute
)

// observed keeps what a histogram was told.
type observed struct{ seconds []float64 }

func (o *observed) Observe(v float64) { o.seconds = append(o.seconds, v) }

// etcd is a model of the keys below the prefix: it makes the events that the
// real one would, in its order, and lists them.
type etcd struct {
	rev   int64
	locks map[string]map[string]lock.KV
}

func newEtcd() *etcd { return &etcd{rev: 1, locks: make(map[string]map[string]lock.KV)} }

// put writes fields in one transaction, in key order.
func (s *etcd) put(name string, fields map[string]string) (events []Event) {
	s.rev++
	if s.locks[name] == nil {
		s.locks[name] = make(map[string]lock.KV)
	}
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		kv := lock.KV{Field: lock.ParseField([]byte(f)), Value: []byte(fields[f]), Create: s.rev, Mod: s.rev}
		if old, ok := s.locks[name][f]; ok {
			kv.Create = old.Create
		}
		s.locks[name][f] = kv
		events = append(events, Event{Name: []byte(name), KV: kv})
	}
	return events
}

// del deletes fields, all of the lock's where none is named, as one range
// delete does.
func (s *etcd) del(name string, fields ...string) (events []Event) {
	s.rev++
	if len(fields) == 0 {
		fields = slices.Sorted(maps.Keys(s.locks[name]))
	}
	for _, f := range fields {
		if _, ok := s.locks[name][f]; !ok {
			continue
		}
		delete(s.locks[name], f)
		events = append(events, Event{Name: []byte(name), Deleted: true,
			KV: lock.KV{Field: lock.ParseField([]byte(f)), Mod: s.rev}})
	}
	if len(s.locks[name]) == 0 {
		delete(s.locks, name)
	}
	return events
}

// collect returns all locks as a listing would.
func (s *etcd) collect() (locks []lock.Lock) {
	for name, fields := range s.locks {
		var b lock.Builder
		for _, kv := range fields {
			b.Add(kv)
		}
		locks = append(locks, b.Lock(name))
	}
	return locks
}

func (s *etcd) token(name string) int64 { return s.locks[name]["uuid"].Create }

// world is a core beside its etcd.
type world struct {
	*etcd
	*core
	t    require.TestingT
	hold *observed
	// shift is by how much our wall clock is off.
	shift time.Duration
}

func newWorld(t require.TestingT) *world {
	w := &world{etcd: newEtcd(), t: t, hold: &observed{}}
	w.core = newCore(w.options())
	return w
}

func (w *world) options() Options {
	return Options{
		DueIn: due, Window: time.Minute, Tolerance: 2 * time.Second,
		Now: func() time.Time { return present().Add(w.shift) }, OrphanGrace: orphanGrace, HoldDuration: w.hold,
	}
}

// due keeps it simple: how an offset counts is not the table's business.
func due(l *lock.Lock, _ verdict.Observation, now lock.Timestamp) time.Duration {
	return time.Duration(l.AutoUnlockAt()-now) + grace
}

// fields are those of a lock taken now, by the owner's (true) clock.
func fields(alert, auto time.Duration) map[string]string {
	return map[string]string{
		"uuid": fmt.Sprintf("%08x-0000-4000-8000-000000000000", time.Now().UnixNano()&0xffffffff), "hostname": "h1",
		"locked_at": at(0), "alert_at": at(alert), "auto_unlock_at": at(auto),
	}
}

func at(d time.Duration) string { return lock.TimestampOf(present().Add(d)).String() }

// present is the true time of the tests: a bubble's begins in 2000, when no
// timestamp of a lock is plausible.
func present() time.Time { return time.Now().AddDate(26, 0, 0) }

func (w *world) acquire(name string, alert, auto time.Duration) {
	w.apply(w.put(name, fields(alert, auto)), true)
}

func (w *world) renew(name string, alert, auto time.Duration) {
	w.apply(w.put(name, map[string]string{"alert_at": at(alert), "auto_unlock_at": at(auto), "alive_at": at(0)}), true)
}

func (w *world) release(name string) { w.apply(w.del(name), true) }

// listing lists what etcd holds now.
func (w *world) listing(resync bool) {
	w.begin(w.rev, resync)
	w.list(w.collect())
	w.end()
	w.check()
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	w.advance()
	w.check()
}

func (w *world) state(name string) lock.State {
	e := w.core.locks[name]
	require.NotNil(w.t, e, name)
	return e.state
}

func (w *world) taken() (names []string) {
	for _, l := range w.take(1000).Due {
		names = append(names, l.Name)
	}
	w.check()
	return names
}

// check holds what is always true of a core at rest.
func (w *world) check() {
	c := w.core
	var counts [lock.NumStates]int
	backlog, inPending, inReady, inOverdue := 0, 0, 0, 0
	for name, e := range c.locks {
		require.Equal(w.t, name, e.Name)
		require.False(w.t, e.touched, name)
		require.NotEqual(w.t, none, e.state, name)
		require.Positive(w.t, e.Keys, name)
		require.True(w.t, e.due != unset || !e.Removable(), name)
		require.Zero(w.t, e.marks&(acquiredSeen|aliveSeen), name)
		require.True(w.t, e.phase != taken || e.marks&unanswered != 0, name)
		counts[e.state]++
		if e.phase != waiting {
			backlog++
		}
		switch {
		case e.phase == ready:
			inReady++
			require.Same(w.t, e, c.ready.entries[e.pos-1], name)
		case e.pos != 0:
			inPending++
			require.NotEqual(w.t, taken, e.phase, name)
			require.Same(w.t, e, c.pending.entries[e.pos-1], name)
		}
		if e.overduePos != 0 {
			inOverdue++
			require.Same(w.t, e, c.overdue.entries[e.overduePos-1], name)
		}
	}
	require.Equal(w.t, counts, c.counts)
	require.Equal(w.t, backlog, c.backlog)
	require.Equal(w.t, inPending, c.pending.Len())
	require.Equal(w.t, inReady, c.ready.Len())
	require.Equal(w.t, inOverdue, c.overdue.Len())
	for _, x := range []*index{&c.pending, &c.ready, &c.overdue} {
		for i := 1; i < x.Len(); i++ {
			require.False(w.t, x.Less(i, (i-1)/2), "heap order at %d", i)
		}
	}
}
