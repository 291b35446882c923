//go:build hunt

package hunt

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

const (
	grace     = time.Second
	tolerance = time.Second
	standby   = time.Second
	// A lock with the shortest patience is due within the settle.
	settle        = 3 * time.Second
	probeInterval = 200 * time.Millisecond
	// A probe is overdue long before it fails.
	daemonTimeout = 2 * time.Second
	electionTTL   = 2 * time.Second
	stormDelay    = time.Second
	// stopping is the maximum time from SIGTERM to the end: twice what the daemon promises.
	stopping = 10 * time.Second
)

// slot is a machine that runs one daemon after another, all with the same proxies and clock.
type slot struct {
	world *world
	group *group
	clock *clock
	dir   string // with the configuration
	// faulty is held during a fault of this slot.
	faulty sync.Mutex
	// past are the daemons that have ended, present the one that runs.
	past    []*daemon
	present *daemon
}

// daemon is a process of the daemon.
type daemon struct {
	*slot
	cmd     *exec.Cmd
	log     *journal
	started time.Time
	// signaled is closed before the daemon gets a signal to end, done when it has ended.
	signaled, done chan struct{}
	// stops are the times in which it was stopped.
	stops []span
	// counted is the number of removals in the last scrape.
	counted int
}

func (w *world) newSlot(g *group) *slot {
	w.t.Helper()
	s := &slot{world: w, group: g, dir: w.t.TempDir(), clock: &clock{}}
	var err error
	s.clock.file, err = os.Create(filepath.Join(s.dir, "clock"))
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		_ = s.clock.file.Close()
	})
	require.NoError(w.t, s.clock.set(0))
	text := s.config().YAML()
	require.NoError(w.t, os.WriteFile(filepath.Join(s.dir, "unlocker.yaml"), text, 0o600))
	return s
}

func (s *slot) config() config.Config {
	c := config.Default()
	c.Etcd.Endpoints = s.group.endpoints()
	c.Etcd.DialTimeout, c.Etcd.RequestTimeout = time.Second, daemonTimeout
	c.Etcd.Username = s.world.cluster.user
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", ""
	c.Reaper.ClockTolerance, c.Reaper.Grace, c.Reaper.StandbyDelay = tolerance, grace, standby
	c.Reaper.Settle, c.Reaper.Freshness = settle, 2*time.Second
	c.Reaper.ProbeInterval = probeInterval
	c.Reaper.OrphanGrace = time.Second
	c.Reaper.Storm.MinLocks, c.Reaper.Storm.Window, c.Reaper.Storm.Delay = 60, 2*time.Second, stormDelay
	c.Election.TTL = electionTTL
	return c
}

func (s *slot) start() {
	cmd := exec.Command(s.world.binary, "serve")
	cmd.Dir = s.dir // where it finds its configuration
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "UNLOCKER_") })
	cmd.Env = append(cmd.Env, "CLOCK_FILE="+s.clock.file.Name(), "UNLOCKER_ETCD_PASSWORD="+s.world.cluster.user)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d := &daemon{slot: s, cmd: cmd, started: time.Now(), signaled: make(chan struct{}), done: make(chan struct{})}
	d.log = newJournal(s.clock)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.world.violate("the hunt itself: a daemon does not start: %v", err)
		return
	}
	s.present = d
	go d.wait(stderr)
}

// wait reads the log of the daemon until it ends.
func (d *daemon) wait(log io.Reader) {
	defer close(d.done)
	d.log.read(log)
	_ = d.cmd.Wait() // ProcessState has the result
	d.log.ended = time.Now()
	select {
	case <-d.signaled:
	default:
		d.world.violate("a daemon ended by itself: %s: %s", d.cmd.ProcessState, d.log.tail())
	}
}

// stop asks the daemon to end, and waits for it.
func (s *slot) stop() {
	d := s.present
	if d == nil {
		return
	}
	d.scrape()
	from := time.Now()
	s.end(syscall.SIGTERM)
	// Before it has started, a signal just ends it.
	if state := d.cmd.ProcessState; state.ExitCode() != 0 && d.log.listener() != "" {
		s.world.violate("a daemon ended after %s: %s: %s", time.Since(from), state, d.log.tail())
	}
	if logged := len(d.log.Removals()); d.counted > logged {
		s.world.violate("S7: a daemon counted %d removals and logged %d", d.counted, logged)
	}
	for _, a := range d.log.Open() {
		s.world.violate("S7: a daemon that was stopped did not log the outcome for %s", a.Lock)
	}
}

// end ends the daemon by a signal. If it does not end in time, it is killed.
func (s *slot) end(sig syscall.Signal) {
	d := s.present
	if d == nil {
		return
	}
	close(d.signaled)
	d.signal(sig)
	late := time.AfterFunc(stopping, func() {
		s.world.violate("a daemon did not end within %s of %s", stopping, sig)
		d.signal(syscall.SIGKILL)
	})
	<-d.done
	late.Stop()
	s.past, s.present = append(s.past, d), nil
}

// signal sends a signal. The only error is that the daemon has ended.
func (d *daemon) signal(sig syscall.Signal) { _ = d.cmd.Process.Signal(sig) }

// suspend stops the daemon while wait runs.
func (s *slot) suspend(wait func()) {
	d, from := s.present, time.Now()
	if d == nil {
		return
	}
	d.signal(syscall.SIGSTOP)
	wait()
	d.signal(syscall.SIGCONT)
	d.stops = append(d.stops, span{From: from, To: time.Now()})
}

// suspended reports whether the daemon was stopped at a time within s.
func (d *daemon) suspended(s span) bool {
	return slices.ContainsFunc(d.stops, func(b span) bool { return b.Overlap(s) > 0 })
}

// scrape reads the number of removals from the metrics of the daemon.
func (d *daemon) scrape() {
	address := d.log.listener()
	if address == "" {
		return // not started yet
	}
	text, err := get("http://" + address + "/metrics")
	if err != nil {
		d.world.violate("no metrics of a daemon: %v", err)
		return
	}
	d.counted = int(etcdtest.Metric(d.world.t, text, "unlocker_forced_unlocks_total", "trigger", string(verdict.Expiry)))
}

func get(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
