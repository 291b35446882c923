package sim

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// history is all that happens in one run.
type history struct {
	Replicas int
	// Clocks are those of the replicas' hosts; without one they are right.
	Clocks  []clock
	Holders []holder
	Faults  []fault
	// Resync is between listings during a watch; 0 is as configured.
	Resync time.Duration
	// Rate limits the removals per second, one in a transaction; 0 is as configured.
	Rate  float64
	Lasts time.Duration
	// Config is one of configurations, "" for the default one.
	Config string
}

// world is a history while it runs.
type world struct {
	history
	without without
	config  config.Config
	etcd    backend
	judge   *judge
	began   time.Time
	epoch   time.Time
	ctx     context.Context

	hosts []*link
	// daemons are the newest of each replica.
	daemons   []*daemon
	people    sync.WaitGroup
	active    []fault
	snapshots map[time.Duration]backup
	// drawn are the faults of the history. Its Faults are those with a time: here what clients do, and what waits for
	// a request, is left out until it happens.
	drawn []fault
	// holdings are by uuid. Only the timeline uses them, and events, which are still to come.
	holdings map[string]*holding
	events   []event
	// traps wait for requests.
	trapping sync.Mutex
	traps    []fault
	trapped  map[trap]bool
	sprung   chan sprung
}

// backup is what a restore brings back.
type backup struct {
	data  any
	truth *truth
}

// settings are the configuration of the daemons.
func settings() config.Config {
	c := config.Default()
	c.Prefix = prefix
	return c
}

// run runs a history on the etcd in memory and returns the judge.
func run(t *testing.T, h history, out without) *judge {
	return runOn(t, h, out, func(w *world) backend { return newMemory(w, keepAlive) })
}

// runReal runs it on a real server.
func runReal(t *testing.T, h history, out without) *judge {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	check(err)
	defer os.RemoveAll(dir)
	return runOn(t, h, out, func(w *world) backend { return newServer(w, dir) })
}

func runOn(t *testing.T, h history, out without, start func(*world) backend) (j *judge) {
	defer closing(h)
	synctest.Test(t, func(t *testing.T) {
		c := settings()
		if edit := configurations()[h.Config]; edit != nil {
			edit(&c)
		}
		if h.Rate > 0 {
			c.Reaper.RateLimit, c.Reaper.BatchSize = h.Rate, 1
		}
		c.ResyncInterval = cmp.Or(h.Resync, c.ResyncInterval)
		if out.config != nil {
			out.config(&c)
		}
		w := &world{history: h, without: out, config: c, snapshots: make(map[time.Duration]backup), holdings: make(map[string]*holding), sprung: make(chan sprung), trapped: make(map[trap]bool), drawn: h.Faults}
		w.Faults = slices.DeleteFunc(slices.Clone(h.Faults), func(f fault) bool { return f.On != "" || f.acting() })
		var cancel context.CancelFunc
		w.ctx, cancel = context.WithCancel(context.Background())
		w.etcd = start(w)
		w.began = time.Now()
		w.epoch = w.began.Add(shift)
		w.judge = newJudge(w)
		j = w.judge
		w.etcd.onApply(w.judge.applied)
		w.live(t, cancel)
	})
	return j
}

// closing lets a history end although the client library's Close of a watcher hangs, which it
// does where etcd refuses a watch in the same instant (v3.7.3). The daemon does not wait for it.
func closing(h history) {
	r := recover()
	if r == nil {
		return
	}
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	over := strings.Contains(fmt.Sprint(r), "main bubble goroutine has exited")
	if !over || !bytes.Contains(stacks, []byte("(*watchGRPCStream).close")) {
		panic(fmt.Sprintf("%v\n%s\n%s", r, h, stacks))
	}
}

func (w *world) elapsed() time.Duration { return time.Since(w.began) }

// at returns the instant a duration after the beginning.
func (w *world) at(elapsed time.Duration) time.Time { return w.began.Add(elapsed) }

func (w *world) live(t *testing.T, cancel context.CancelFunc) {
	last := 0
	for _, h := range w.Holders {
		last = max(last, h.Host)
	}
	for range last + 1 {
		l, err := w.etcd.other()
		if err != nil {
			t.Fatal(err)
		}
		w.hosts = append(w.hosts, l)
	}
	w.daemons = make([]*daemon, w.Replicas)
	for n := range w.daemons {
		w.start(n)
	}
	w.connectivity()
	for i := range w.Holders {
		h := &holding{holder: &w.Holders[i], w: w, uuid: w.judge.enter(&w.Holders[i])}
		w.holdings[h.uuid] = h
		w.people.Go(func() { h.run(w.ctx) })
	}
	w.timeline()
	w.accounts()
	w.judge.end()
	cancel()
	for _, d := range w.daemons {
		if d.ended == 0 {
			d.kill()
		}
	}
	w.etcd.close()
	w.people.Wait()
}

// start starts a replica.
func (w *world) start(n int) {
	d := &daemon{w: w, replica: n, started: w.elapsed()}
	if n < len(w.Clocks) {
		d.clock = w.Clocks[n]
	}
	var err error
	d.link, err = w.etcd.daemon(d)
	check(err)
	d.link.Set(w.networkOf(replicas, n))
	check(d.wire(w.config))
	w.judge.started(d)
	w.daemons[n] = d
	d.run()
}

// event is one point of the timeline.
type event struct {
	at time.Duration
	do func()
}
