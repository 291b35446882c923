package reaper

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// huntScript is all that differs between two histories.
type huntScript struct {
	Owners   []huntOwnerScript
	Replicas []huntReplicaScript
	Leader   int
	// Refuse: an etcd that is down refuses at once, rather than let wait.
	Refuse bool
	// Calm: nothing happens but that owners die; then all happens on time.
	Calm    bool
	Actions []huntAction
}

type huntOwnerScript struct {
	Offset  time.Duration
	Drift   float64
	TTL     time.Duration
	Every   float64
	Latency time.Duration
	Alive   bool
	Whole   bool
	Linger  bool
}

type huntReplicaScript struct {
	Offset time.Duration
	Drift  float64
	Delay  time.Duration
	Storm  int
}

type huntAction struct {
	After time.Duration
	Kind  string
	Who   int
	Arg   time.Duration
}

func huntMillis(lo, hi int) *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.IntRange(lo, hi), func(n int) time.Duration { return time.Duration(n) * time.Millisecond })
}

var (
	huntOffsets = rapid.OneOf(rapid.Just(time.Duration(0)), huntMillis(-2_500, 2_500), huntMillis(-2_500, 2_500),
		huntMillis(-20_000, 20_000), huntMillis(-120_000, 120_000), huntMillis(-3_600_000, 3_600_000))
	huntDrifts = rapid.SampledFrom([]float64{0, 0, 0, 1e-4, -1e-4, 0.01, -0.01, 0.03, -0.03})
	huntSpans  = rapid.OneOf(huntMillis(50, 3_000), huntMillis(1_000, 30_000), huntMillis(10_000, 90_000))

	huntOwners = rapid.Custom(func(t *rapid.T) huntOwnerScript {
		o := huntOwnerScript{
			Offset:  huntOffsets.Draw(t, "offset"),
			Drift:   huntDrifts.Draw(t, "drift"),
			TTL:     time.Duration(rapid.IntRange(4, 60).Draw(t, "ttl")) * time.Second,
			Every:   rapid.SampledFrom([]float64{0.33, 0.5, 0.8}).Draw(t, "every"),
			Latency: huntMillis(1, 150).Draw(t, "latency"),
			Alive:   rapid.IntRange(0, 3).Draw(t, "alive") > 0,
			Whole:   rapid.Bool().Draw(t, "whole"),
			Linger:  rapid.Bool().Draw(t, "linger"),
		}
		return o
	})
	huntReplicaScripts = rapid.Custom(func(t *rapid.T) huntReplicaScript {
		return huntReplicaScript{
			Offset: huntOffsets.Draw(t, "offset"),
			Drift:  huntDrifts.Draw(t, "drift"),
			Delay:  rapid.OneOf(huntMillis(1, 40), huntMillis(1, 40), huntMillis(1, 4_000)).Draw(t, "delay"),
			Storm:  rapid.SampledFrom([]int{0, 0, 2, 100}).Draw(t, "storm"),
		}
	})
	huntKinds = []string{"crash", "crash", "crash", "restart", "release", "cut owner", "outage", "outage", "nospace", "cut replica",
		"pause", "drop", "fresh", "fresh", "lead", "lead", "step", "race", "race", "answer", "delay", "restore"}
	huntActions = rapid.Custom(func(t *rapid.T) huntAction {
		return huntAction{
			After: huntSpans.Draw(t, "after"),
			Kind:  rapid.SampledFrom(huntKinds).Draw(t, "kind"),
			Who:   rapid.IntRange(0, 11).Draw(t, "who"),
			Arg:   huntSpans.Draw(t, "arg"),
		}
	})
	huntScripts = rapid.Custom(func(t *rapid.T) huntScript {
		s := huntScript{
			Owners:   rapid.SliceOfN(huntOwners, 1, 3).Draw(t, "owners"),
			Replicas: rapid.SliceOfN(huntReplicaScripts, 1, 3).Draw(t, "replicas"),
			Leader:   rapid.IntRange(-1, 2).Draw(t, "leader"),
			Refuse:   rapid.Bool().Draw(t, "refuse"),
			Calm:     rapid.IntRange(0, 7).Draw(t, "calm") == 7,
		}
		if !s.Calm {
			s.Actions = rapid.SliceOfN(huntActions, 0, 14).Draw(t, "actions")
		}
		return s
	})
)

// huntSteps lets owners' clocks step, of which nothing is promised until they
// are measured again.
var huntSteps = os.Getenv("HUNT_STEPS") != ""

// run lives through the script in a bubble of synctest.
func (s huntScript) run(stats *huntFigures) *huntWorld {
	w := &huntWorld{huntScript: s, began: time.Now(), up: true, space: true, stats: stats}
	w.store = huntStore{rev: 1, cluster: 1, kvs: make(map[string]*mvccpb.KeyValue)}
	for i, script := range s.Replicas {
		if s.Calm {
			script.Drift, script.Storm = 0, 0
		}
		r := w.newReplica(i, script)
		r.leads = i == s.Leader
		w.replicas = append(w.replicas, r)
	}
	for i, script := range s.Owners {
		o := &huntOwner{huntOwnerScript: script, w: w, name: string(rune('a' + i))}
		o.clock = huntClock{w: w, off: script.Offset, drift: script.Drift}
		w.owners = append(w.owners, o)
		w.in(2500*time.Millisecond+time.Duration(i)*700*time.Millisecond, o.acquire)
	}
	w.in(10*time.Second, w.keep)
	if s.Calm {
		w.calm()
	} else {
		for _, a := range s.Actions {
			w.until(time.Now().Add(a.After))
			if w.violated != "" {
				break
			}
			w.faults++
			w.act(a)
		}
		w.until(time.Now().Add(20 * time.Second))
		w.quiet()
	}
	stats.histories++
	stats.removals += int64(w.removed)
	stats.faults += int64(w.faults)
	stats.virtual += int64(time.Since(w.began).Seconds())
	return w
}

func (w *huntWorld) keep() {
	w.old = append(w.old, w.store.snapshot())
	w.in(10*time.Second, w.keep)
}

// heal undoes a fault after a while, unless it was done anew meanwhile.
func (w *huntWorld) heal(d time.Duration, what string, do func()) {
	w.in(d, func() {
		w.say("over: %s", what)
		do()
	})
}

func (w *huntWorld) act(a huntAction) {
	o := w.owners[a.Who%len(w.owners)]
	r := w.replicas[a.Who%len(w.replicas)]
	w.say("%s (owner %s or replica %d) %v", a.Kind, o.name, r.id, a.Arg)
	switch a.Kind {
	case "crash":
		o.crash()
		if a.Who%2 == 0 {
			w.in(a.Arg, o.restart)
		}
	case "restart":
		o.restart()
	case "release":
		o.release()
	case "cut owner":
		o.cut = true
		w.heal(a.Arg, "owner "+o.name+" cut", func() { o.cut = false })
	case "outage":
		if w.up {
			w.up = false
			w.heal(a.Arg, "outage", w.back)
		}
	case "nospace":
		if w.space {
			w.space = false
			w.heal(a.Arg, "nospace", func() { w.space = true })
		}
	case "cut replica":
		r.gate.open()
		r.cut = true
		w.heal(a.Arg, fmt.Sprintf("replica %d cut", r.id), func() { r.cut = false; r.in(r.delay, r.deliver) })
	case "pause":
		r.paused = true
		w.heal(a.Arg, fmt.Sprintf("replica %d paused", r.id), func() { r.paused = false; r.in(0, r.deliver) })
	case "drop":
		r.drop()
	case "fresh":
		r.dead = true
		n := w.newReplica(r.id, w.Replicas[r.id])
		n.clock.off, n.leads = r.clock.off, r.leads
		w.replicas[r.id] = n
	case "lead":
		r.leads = !r.leads
	case "step":
		d := a.Arg
		if a.Who%2 == 1 {
			d = -d
		}
		if huntSteps && a.Who >= 6 {
			o.clock.off += d
			o.stepped = true
		} else {
			r.clock.off += d
		}
	case "race":
		r.race = func() {
			switch {
			case a.Who%3 == 0:
				o.release()
			case o.holding && !o.crashed && o.reaches():
				o.fault = false
				o.put(o.clock.now(), o.clock.now().Add(o.TTL))
			}
		}
	case "answer":
		r.answer = answerLost + huntAnswer(a.Who%2)
	case "delay":
		r.delay = min(a.Arg/8, 4*time.Second)
	case "restore":
		if n := len(w.old); n > 0 {
			s := w.old[n-1-min(a.Who, n-1)].snapshot()
			s.cluster = w.store.cluster
			// A restore that keeps the id of the cluster, and of which no revision
			// that was seen tells, cannot be told from what was.
			told := func(r *huntReplica) bool { return r.connected && r.reaches() && r.revision > s.rev }
			if a.Who%3 > 0 || !all(w.replicas, told) {
				s.cluster++
			}
			w.store, w.old, w.lingers = s, nil, nil
			w.say("restored revision %d", s.rev)
			for _, r := range w.replicas {
				r.drop()
			}
		}
	}
}

// back is the end of an outage: what etcd had taken before comes first.
func (w *huntWorld) back() {
	w.up = true
	lingers := w.lingers
	w.lingers = nil
	for _, do := range lingers {
		do()
	}
	w.wrote()
}

// judge is called when a lock is about to be deleted, whose state the replica
// had judged as it was when it was read.
func (w *huntWorld) judge(r *huntReplica, name string, judged lock.Lock) {
	w.removed++
	now := w.store.collect(name)
	key := w.store.kvs[huntLayout.Key(name, "auto_unlock_at")]
	w.say("replica %d removes %s, uuid %s", r.id, name, now.UUID())
	if now.UUID() != judged.UUID() || now.AutoUnlockText() != judged.AutoUnlockText() || now.Revision > judged.Revision {
		w.violate("S1: %s changed since it was judged", name)
	}
	i := slices.IndexFunc(w.owners, func(o *huntOwner) bool { return o.name == name })
	o := w.owners[i]
	deadline := now.AutoUnlockAt().Time()
	sight, known := r.sights[name]
	live := known && key != nil && (sight.rev == key.ModRevision || sight.token == now.Token)
	if left := deadline.Sub(o.clock.now()); live && !o.stepped && left > 0 {
		// How fast a clock goes cannot be known until it is measured again.
		allowed := time.Duration(math.Abs(o.Drift) * float64(time.Since(sight.at)))
		if left > allowed || huntStrict {
			w.violate("S2: the clock of %s is %v before auto_unlock_at", name, left)
		}
		w.stats.drifted++
		return
	}
	if o.holding && o.uuid == now.UUID() && !o.fault && !o.stepped && !o.crashed {
		// Without a measurement, five minutes past is past all doubt.
		if !live && !deadline.Add(5*time.Minute).After(r.clock.now()) {
			w.stats.doubtless++
			return
		}
		w.violate("S2, S3: %s lives, and renews as soon as etcd takes it", name)
	}
	if w.Calm && live {
		w.onTime(r, name, sight, deadline)
	}
}

var huntStrict = os.Getenv("HUNT_STRICT") != ""

// due is when a lock is due by what a replica saw live.
func (r *huntReplica) due(s huntSight, deadline time.Time) time.Time {
	wall := r.clock.now().Add(-time.Since(s.at))
	d := deadline.Sub(wall) + huntGrace
	if s.offset < -huntTolerance {
		d -= s.offset
	}
	return s.at.Add(d)
}

const huntLate = 300 * time.Millisecond

func (w *huntWorld) onTime(r *huntReplica, name string, s huntSight, deadline time.Time) {
	late := time.Since(r.due(s, deadline))
	if !r.leads {
		late -= huntStandby
	}
	if late < 0 || late > huntLate {
		w.violate("S6: %s is removed %v late", name, late)
	}
}

// calm lets owners die, one after the other, and nothing else happen.
func (w *huntWorld) calm() {
	w.until(time.Now().Add(20 * time.Second))
	for _, o := range w.owners {
		w.until(time.Now().Add(7 * time.Second))
		o.crash()
	}
	w.until(time.Now().Add(100 * time.Second))
	for _, r := range w.replicas {
		for name, s := range r.sights {
			l := w.store.collect(name)
			if key := w.store.kvs[huntLayout.Key(name, "auto_unlock_at")]; key == nil || s.rev != key.ModRevision && s.token != l.Token {
				continue
			}
			late := time.Since(r.due(s, l.AutoUnlockAt().Time()))
			if !r.leads {
				late -= huntStandby
			}
			if late > huntLate && w.violated == "" {
				w.violate("S6: %s is %v late and still there", name, late)
			}
		}
	}
}

// quiet heals all and lets all owners die: then all locks go, soon.
func (w *huntWorld) quiet() {
	if w.violated != "" {
		return
	}
	w.say("quiet")
	w.over = true
	w.space = true
	w.back()
	for _, o := range w.owners {
		o.cut = false
		o.crash()
	}
	most := time.Duration(0)
	for i, r := range w.replicas {
		r.leads, r.cut, r.paused, r.race, r.answer = i == 0, false, false, nil, answerPlain
		r.in(r.delay, r.deliver)
	}
	r := w.replicas[0]
	for _, l := range w.store.list() {
		left := max(0, l.AutoUnlockAt().Time().Sub(r.clock.now())) + huntGrace + r.stepped()
		// What was seen may be forgotten, or seen late.
		left += time.Minute + r.probe.Credit(w.began) + max(0, -r.sights[l.Name].offset)
		most = max(most, left)
	}
	if most > 8*time.Minute {
		return
	}
	w.until(time.Now().Add(most + most/20 + huntSettle + 45*time.Second))
	if locks := w.store.list(); len(locks) > 0 && w.violated == "" {
		w.violate("S6: %s is still there, %v after all was well", locks[0].Name, most)
	}
}

// stepped is how far the replica's clock was stepped, in sum.
func (r *huntReplica) stepped() (sum time.Duration) {
	for _, a := range r.w.Actions {
		if a.Kind == "step" && a.Who%len(r.w.replicas) == r.id {
			sum += a.Arg
		}
	}
	return sum
}

// TestHuntForBrokenPromises lives through random histories of owners, daemons
// and an etcd, each part of which fails as it can. HUNT_HISTORIES is how many.
func TestHuntForBrokenPromises(t *testing.T) {
	histories := 1_000 // make hunt-model lives through 10,000
	if n, err := strconv.Atoi(os.Getenv("HUNT_HISTORIES")); err == nil {
		histories = n
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("HUNT_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("HUNT_SEED=%d", seed)
	const shards = 2
	var figures [shards]huntFigures
	var failed atomic.Bool
	began := time.Now()
	t.Run("shards", func(t *testing.T) {
		for i := range shards {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for n := i; n < histories && !failed.Load(); n += shards {
					if !huntOnce(t, int(seed%1e9)+n, &figures[i]) {
						failed.Store(true)
					}
				}
			})
		}
	})
	var sum huntFigures
	for _, f := range figures {
		sum.histories += f.histories
		sum.lifetimes += f.lifetimes
		sum.removals += f.removals
		sum.faults += f.faults
		sum.virtual += f.virtual
		sum.lost += f.lost
		sum.drifted += f.drifted
		sum.doubtless += f.doubtless
	}
	t.Logf("%d histories (%.0f/s), %d hours, %d lifetimes, %d removals, %d faults, %d found gone, %d by a drifting clock, %d doubtless", sum.histories,
		float64(sum.histories)/time.Since(began).Seconds(), sum.virtual/3600, sum.lifetimes, sum.removals, sum.faults, sum.lost, sum.drifted, sum.doubtless)
}

// huntOnce lives through one history, and makes it shorter where it breaks a
// promise.
func huntOnce(t *testing.T, seed int, figures *huntFigures) bool {
	script := huntScripts.Example(seed)
	w := script.bubble(t, figures)
	if w.violated == "" {
		return true
	}
	kind, _, _ := strings.Cut(w.violated, ":")
	script, w = script.shrink(t, kind, w)
	t.Errorf("HUNT_SEED=%d HUNT_HISTORIES=1 breaks %s\n%s\n%s", seed, w.violated, script, strings.Join(w.trace, "\n"))
	return false
}

func (s huntScript) bubble(t *testing.T, figures *huntFigures) (w *huntWorld) {
	synctest.Test(t, func(*testing.T) { w = s.run(figures) })
	require.NotNil(t, w)
	return w
}

func (s huntScript) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "leader %d, refuse %v, calm %v\n", s.Leader, s.Refuse, s.Calm)
	for i, o := range s.Owners {
		fmt.Fprintf(&b, "owner %c: %+v\n", 'a'+i, o)
	}
	for i, r := range s.Replicas {
		fmt.Fprintf(&b, "replica %d: %+v\n", i, r)
	}
	for _, a := range s.Actions {
		fmt.Fprintf(&b, "after %v: %s %d %v\n", a.After, a.Kind, a.Who, a.Arg)
	}
	return b.String()
}

// shrink makes a script as simple as it gets while it breaks the same promise.
func (s huntScript) shrink(t *testing.T, kind string, w *huntWorld) (huntScript, *huntWorld) {
	var none huntFigures
	try := func(c huntScript) bool {
		if len(c.Owners) == 0 || len(c.Replicas) == 0 {
			return false
		}
		cw := c.bubble(t, &none)
		if k, _, _ := strings.Cut(cw.violated, ":"); k != kind {
			return false
		}
		s, w = c, cw
		return true
	}
	for again := true; again; {
		again = false
		for i := len(s.Actions) - 1; i >= 0; i-- {
			c := s
			c.Actions = slices.Delete(slices.Clone(s.Actions), i, i+1)
			if !try(c) && i+1 < len(s.Actions) { // the next comes as late as it did
				c.Actions[i].After += s.Actions[i].After
				try(c)
			}
			again = again || len(s.Actions) == len(c.Actions)
		}
		for i := len(s.Owners) - 1; i > 0; i-- {
			c := s
			c.Owners = slices.Delete(slices.Clone(s.Owners), i, i+1)
			again = try(c) || again
		}
		for i := len(s.Replicas) - 1; i > 0; i-- {
			c := s
			c.Replicas = slices.Delete(slices.Clone(s.Replicas), i, i+1)
			again = try(c) || again
		}
		again = s.plainer(try) || again
	}
	return s, w
}

// plainer tries simpler numbers.
func (s huntScript) plainer(try func(huntScript) bool) (some bool) {
	for i := range s.Owners {
		for _, edit := range []func(*huntOwnerScript) bool{
			func(o *huntOwnerScript) bool { was := o.Offset; o.Offset = 0; return was != 0 },
			func(o *huntOwnerScript) bool { was := o.Drift; o.Drift = 0; return was != 0 },
			func(o *huntOwnerScript) bool { was := o.Whole; o.Whole = false; return was },
			func(o *huntOwnerScript) bool { was := o.Linger; o.Linger = false; return was },
			func(o *huntOwnerScript) bool { was := o.Alive; o.Alive = true; return !was },
		} {
			c := s
			c.Owners = slices.Clone(s.Owners)
			if edit(&c.Owners[i]) && try(c) {
				s, some = c, true
			}
		}
	}
	for i := range s.Replicas {
		for _, edit := range []func(*huntReplicaScript) bool{
			func(r *huntReplicaScript) bool { was := r.Offset; r.Offset = 0; return was != 0 },
			func(r *huntReplicaScript) bool { was := r.Drift; r.Drift = 0; return was != 0 },
			func(r *huntReplicaScript) bool { was := r.Storm; r.Storm = 0; return was != 0 },
			func(r *huntReplicaScript) bool {
				was := r.Delay
				r.Delay = time.Millisecond
				return was != time.Millisecond
			},
		} {
			c := s
			c.Replicas = slices.Clone(s.Replicas)
			if edit(&c.Replicas[i]) && try(c) {
				s, some = c, true
			}
		}
	}
	return some
}

func all[T any](of []T, is func(T) bool) bool {
	return !slices.ContainsFunc(of, func(v T) bool { return !is(v) })
}
