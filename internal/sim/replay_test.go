//go:build nightly

package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A tick of the model is a minute here: the rules have no scale, and what the model leaves out, as the lead of a probe,
// drift, and pauses before something is tried again, is then far less than a tick.
const (
	tick      = time.Minute
	firstTick = 8 // START: the lock is taken
	lastTick  = firstTick + 36
	ttlTicks  = 4 // TTL
	// Faults begin with a tick, then daemons begin to probe, and what waited for the end of a fault arrives, then the
	// holder writes: so what takes whole ticks ends in the tick in which the model has it.
	probing = tick / 10
	writing = 4 * probing
)

func tickAt(n int) time.Duration       { return time.Duration(n)*tick - probing } // daemons start at 0
func tickOf(elapsed time.Duration) int { return int((elapsed + probing) / tick) }

// inTicks has the constants of removal.pml. The model counts whole ticks: a watch is silent from the tick after FRESH on,
// and a request that is answered in the tick in which it would time out is answered.
func inTicks(c *config.Config) {
	r := &c.Reaper
	r.Grace, r.ClockTolerance, r.Settle, r.Freshness, r.StandbyDelay, r.ProbeInterval = 2*tick, 2*tick, 2*tick, 4*tick, tick, tick
	c.Etcd.RequestTimeout = 3*tick + probing/2
}

// trace is what happened in a history: what the model is given, and when the lock was removed, 0 for never.
type trace struct {
	history
	rows    [lastTick + 1]row
	removed int
}

// row is a tick in the model: its columns are those of trace.pml.
type row [15]int

const (
	etcdIs, isPaused             = 0, 1
	wall, isCut, lags, isDead    = 2, 3, 4, 5 // of the first replica
	second                       = 4          // those of the second are so much further
	written, deadline, unstamped = 10, 11, 12
	left, leftUp                 = 13, 14
)

var columns = [len(row{})]string{"etcd (1 down, 2 hangs, 3 alarm)", "paused", "wall clock", "cut off", "watch lags", "dead",
	"second: wall clock", "second: cut off", "second: watch lags", "second: dead", "write", "deadline", "unstamped", "left", "left with etcd"}

// tracer is an etcd that records a trace.
type tracer struct {
	*memory
	*trace
}

func (r tracer) onApply(f func(applied)) {
	r.memory.onApply(func(a applied) {
		if now := tickOf(r.w.elapsed()); now <= lastTick {
			r.record(a.events, now)
		}
		f(a)
	})
}

func (r tracer) record(events []*mvccpb.Event, now int) {
	bare, stamp := 1, ""
	for _, ev := range events {
		if _, field, _ := split(ev.Kv.Key); field == "locked_at" || field == "alive_at" {
			bare, stamp = 0, string(ev.Kv.Value)
		}
	}
	for _, ev := range events {
		switch _, field, below := split(ev.Kv.Key); {
		case below && field == "uuid" && ev.Type == mvccpb.Event_DELETE:
			r.removed = now
		case below && field == "auto_unlock_at" && ev.Type == mvccpb.Event_PUT:
			at, _ := judges.Timestamp(string(ev.Kv.Value))
			r.w.judge.mu.Lock()
			sent := tickOf(r.w.judge.claims["holder-0"].passes[stamps{string(ev.Kv.Value), stamp}].made)
			r.w.judge.mu.Unlock()
			up := 0
			for n := sent; n < now; n++ {
				if r.rows[n][etcdIs] == 0 {
					up++
				}
			}
			row := &r.rows[now]
			row[written], row[deadline], row[unstamped] = 1, tickOf(at.Sub(r.w.epoch)), bare
			row[left], row[leftUp] = max(0, ttlTicks-(now-sent)), max(0, ttlTicks-up)
		}
	}
}

// states are those of etcd in the model.
var states = map[kind]int{refused: 1, unreachable: 2, unanswered: 2, noSpace: 3}

// drawTrace draws a history that the model can express.
func drawTrace(r *rand.Rand) *trace {
	among := func(n ...int) int { return n[r.IntN(len(n))] }
	ticks := func(n int) time.Duration { return time.Duration(n) * tick }
	h := holder{Name: "a", Start: tickAt(firstTick) + writing, Interval: ticks(among(0, 1, 1, 2, 3)), TTL: ticks(ttlTicks), Retry: ticks(among(1, 2)), LockedAt: true, AliveAt: r.IntN(4) > 0}
	if h.Dies = tickAt(firstTick + 1 + r.IntN(12)); r.IntN(4) == 0 {
		h.Dies, h.Stall, h.StallsFor = 0, tickAt(firstTick+1+r.IntN(8)), ticks(2+r.IntN(8))
	}
	h.Clock.Offset = ticks(among(-3, -2, 0, 0, 1, 3)) + tick/50 // a clock is observed a little later
	if h.AliveAt && r.IntN(4) == 0 {
		h.Clock.Steps = []step{{tickAt(firstTick + r.IntN(12)), ticks(among(-3, 3))}}
	}
	t := &trace{history: history{Replicas: among(1, 1, 2), Holders: []holder{h}, Lasts: tickAt(lastTick), Resync: 24 * time.Hour}}
	for range t.Replicas {
		t.Clocks = append(t.Clocks, clock{Offset: ticks(among(-3, 0, 0, 3))})
	}
	for range r.IntN(4) {
		t.add(t.drawFault(r))
	}
	t.environment()
	return t
}

func (t *trace) drawFault(r *rand.Rand) fault {
	f := fault{Who: replicas, N: 1 + r.IntN(t.Replicas), At: tickAt(firstTick + 1 + r.IntN(14)), For: time.Duration(1+r.IntN(3)) * tick}
	if o := t.Holders[0]; r.IntN(2) == 0 { // around due
		f.At = tickAt(tickOf(max(o.Dies, o.Stall)) + r.IntN(8))
	}
	f.Kind = []kind{refused, unreachable, unanswered, noSpace, unreachable, silentWatch, killed, latency, paused}[r.IntN(9)]
	if states[f.Kind] > 0 && (f.Kind != unreachable || r.IntN(2) == 0) {
		f.Who, f.N = everyone, 0
	}
	switch f.Kind {
	case refused, unreachable, unanswered, killed:
		f.For += probing
	case silentWatch:
		f.For = time.Duration(1+r.IntN(5))*tick + probing
	case latency: // renewals are late
		f.Who, f.N, f.By = hosts, 0, time.Duration(1+r.IntN(2))*tick
	case paused:
		f.Who, f.N, f.For = everyone, 0, t.Lasts
	}
	return f
}

// add adds a fault, unless another one is where it would be, or a watch would show what it held back while etcd gives no
// answers: the model's shows it when etcd does.
func (t *trace) add(f fault) {
	heldUntil := func(w, o fault) bool {
		return w.Kind == silentWatch && states[o.Kind] > 0 && o.At < w.end() && w.end() <= o.end()
	}
	for _, o := range t.Faults {
		apart := f.At > o.end()+2*tick || o.At > f.end()+2*tick
		if !apart && (f.Kind == paused || o.Kind == paused || f.Who == o.Who && f.N == o.N) || heldUntil(f, o) || heldUntil(o, f) {
			return
		}
	}
	t.Faults = append(t.Faults, f)
}

// environment writes the faults into the rows.
func (t *trace) environment() {
	for n := range t.rows {
		row := &t.rows[n]
		for r, c := range t.Clocks {
			row[wall+second*r] = int(c.Offset / tick)
		}
		row[isDead+second] = 2 - t.Replicas
		for _, f := range t.Faults {
			of := max(0, f.N-1) * second
			switch {
			case tickAt(n) < f.At || tickAt(n) >= f.end()-probing || f.Kind == latency:
			case f.Kind == paused:
				row[isPaused] = 1
			case f.Who == everyone:
				row[etcdIs] = states[f.Kind]
			case f.Kind == killed:
				row[isDead+of] = 1
			case f.Kind == silentWatch:
				row[lags+of] = 1
			default:
				row[isCut+of] = 1
			}
		}
	}
}

// traces runs histories of a daemon.
func traces(t *testing.T, seed uint64, count int, out without) (all []*trace) {
	edit := out.config
	out.config = func(c *config.Config) {
		if inTicks(c); edit != nil {
			edit(c)
		}
	}
	for n := range count {
		one := drawTrace(rand.New(rand.NewPCG(seed, uint64(n))))
		runOn(t, one.history, out, func(w *world) backend { return tracer{newMemory(w, keepAlive*(tick/time.Second)), one} })
		all = append(all, one)
	}
	return all
}

// script is a row of C.
func (t *trace) script() string {
	return strings.NewReplacer("[", "{", "]", "}", " ", ",").Replace(fmt.Sprint(t.rows)) + ",\n"
}

// words says what the model is given, as far as it matters.
func (t *trace) words() (text string) {
	for n := firstTick; n <= lastTick && (t.removed == 0 || n <= t.removed); n++ {
		text += fmt.Sprintf("  tick %d:", n)
		for column, value := range t.rows[n] {
			if value != 0 {
				text += fmt.Sprintf(" %s %d;", columns[column], value)
			}
		}
		text += "\n"
	}
	return text + t.history.String()
}

// allowed returns the ticks in which the model allows that the lock of each trace is removed, 0 for never.
func allowed(t *testing.T, all []*trace) []map[int]bool {
	text := fmt.Sprintf("static const short script[][%d][%d] = {\n", lastTick+1, len(row{}))
	for _, one := range all {
		text += one.script()
	}
	model, err := filepath.Abs("../../docs/model")
	require.NoError(t, err)
	search := exec.CommandContext(t.Context(), filepath.Join(model, "search.sh"), filepath.Join(model, "removal.pml"),
		"-DTRACE", "-DREPLICAS=2", fmt.Sprint("-DTRACES=", len(all)), fmt.Sprint("-DLAST=", lastTick))
	search.Dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(search.Dir, "script.h"), []byte(text+"};\n"), 0o600))
	found, err := search.CombinedOutput()
	out := string(found)
	require.NoError(t, err, "%s", out)
	require.Contains(t, out, "errors: 0", "the judges of the model")
	require.NotRegexp(t, "Search not completed|memory limit|max search depth", out)
	ticks := make([]map[int]bool, len(all))
	for i := range ticks {
		ticks[i] = map[int]bool{}
	}
	for _, m := range regexp.MustCompile(`(?m)^removed (\d+) (\d+)$`).FindAllStringSubmatch(out, -1) {
		i, _ := strconv.Atoi(m[1])
		n, _ := strconv.Atoi(m[2])
		ticks[i][n] = true
	}
	return ticks
}

// rejected returns the traces of which the model has no run, and describes them.
func rejected(t *testing.T, seed uint64, count int, out without) (which []int, why []string) {
	all := traces(t, seed, count, out)
	sizes, removals := 0, 0
	for i, ticks := range allowed(t, all) {
		require.NotEmpty(t, ticks, "trace %d has no run in the model at all", i)
		sizes += len(ticks)
		if all[i].removed > 0 {
			removals++
		}
		if !ticks[all[i].removed] {
			which = append(which, i)
			text := fmt.Sprintf("trace %d: removed in tick %d, the model allows %v (0 is never)\n", i, all[i].removed, slices.Sorted(maps.Keys(ticks)))
			why = append(why, text+all[i].words())
		}
	}
	t.Logf("%d traces, %d with a removal; the model allows %.2f ticks for each; it rejects %d", count, removals, float64(sizes)/float64(count), len(which))
	return which, why
}

// TestReplay replays histories of the daemon in the model: of each it must have a run with this environment in which the
// lock is removed in the same tick, or never. SIM_TRACES is how many there are, SIM_SEED draws others.
func TestReplay(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv("SIM_TRACES"), "200"))
	require.NoError(t, err)
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SIM_SEED"), "1"), 10, 64)
	require.NoError(t, err)
	_, why := rejected(t, seed, count, without{})
	require.Empty(t, why, "%s", strings.Join(why, "\n"))
}

// TestReplayRejects takes rules out of the daemon: the model must reject some of its histories.
func TestReplayRejects(t *testing.T) {
	for rule, out := range map[string]without{
		"settle":           {config: func(c *config.Config) { c.Reaper.Settle = 0 }},
		"grace":            {config: func(c *config.Config) { c.Reaper.Grace = tick }},
		"outage allowance": {allowance: true},
		"outages twice":    {twice: true},
		"pause":            {signals: unpaused},
		"freshness":        {config: func(c *config.Config) { c.Reaper.Freshness = time.Hour }},
		"standby":          {rules: func(r *verdict.Rules) { r.StandbyDelay = 4 * tick }},
	} {
		t.Run(rule, func(t *testing.T) {
			which, why := rejected(t, 1, 60, out)
			require.NotEmpty(t, which)
			t.Logf("rejected after %d: %s", which[0]+1, why[0])
		})
	}
}
