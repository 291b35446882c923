//go:build hunt

package hunt

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// waiterEnv is the environment variable with the configuration of a waiter, as JSON. With it the test binary is that
	// process and runs no tests.
	waiterEnv = "HUNT_WAITER"
	// waitersPrefix has the tickets.
	waitersPrefix = "/unlocker/waiters" + prefix
	waiters       = 12
	// pool is a name with poolSlots slots; the other names are locks.
	pool, poolSlots = "pool", 2
)

func queueNames() []string { return []string{"a", "b", pool} }

// waiterConfig is that of a waiter.
type waiterConfig struct {
	Endpoints []string
	Seed      uint64
}

// did is an operation of a waiter, a line of its output. A renewal is a look that found the lock held.
type did struct {
	Kind     kind
	Name     string
	Token    int64
	From, To time.Time
}

// serveWaiter is the main function of a waiter: it takes one lock after another. When its standard input ends, it takes
// each once more, and ends.
func serveWaiter(text string) error {
	var c waiterConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints, DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	locks, err := mutex.New(etcd, mutex.Expect(3*time.Second), mutex.Patience(4*time.Second), mutex.KeepAlive(mutex.Forever))
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(c.Seed, 0))
	finish := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(finish)
	}()
	for {
		select {
		case <-finish:
			for _, name := range queueNames() {
				if err := takeTurn(locks, r, name); err != nil {
					return err
				}
			}
			return nil
		default:
			if err := takeTurn(locks, r, queueNames()[r.IntN(3)]); err != nil {
				return err
			}
		}
	}
}

// takeTurn takes a lock, looks several times whether it still has it, and releases it.
func takeTurn(locks *mutex.Client, r *rand.Rand, name string) error {
	ctx, began, opts := context.Background(), time.Now(), []mutex.Option(nil)
	if name == pool {
		opts = append(opts, mutex.Slots(poolSlots))
	}
	l, err := locks.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	say := func(k kind) {
		line, _ := json.Marshal(did{k, l.Name(), l.Token(), began, time.Now()})
		fmt.Println(string(line)) // one write: a killed process leaves no part of it
	}
	say(acquired)
	for range 1 + r.IntN(8) {
		pause(ctx, between(r, time.Millisecond, 20*time.Millisecond))
		if began = time.Now(); l.Held() == nil {
			say(renewed)
		}
	}
	if began = time.Now(); l.Unlock(ctx) == nil {
		say(freed)
	}
	return nil
}

// contender is the process of a waiter.
type contender struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
	err   error
	all   []did
}

func startContender(t *testing.T, c waiterConfig) *contender {
	text, err := json.Marshal(c)
	require.NoError(t, err)
	p := &contender{cmd: exec.CommandContext(t.Context(), os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), waiterEnv+"="+string(text)), os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var d did
			if p.err = json.Unmarshal(lines.Bytes(), &d); p.err != nil {
				break
			}
			p.all = append(p.all, d)
		}
		p.err = cmp.Or(p.err, p.cmd.Wait())
	}()
	return p
}

// kill kills the process with SIGKILL, also if it is stopped, and waits for its end.
func (p *contender) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// TestQueue has processes wait for locks and slots in order, kills and stops them, and kills members of etcd. A daemon
// removes the locks of the killed ones.
func TestQueue(t *testing.T) {
	length, seed := envDuration(t, "HUNT_TIME", longTime)/3, envSeed(t)
	t.Logf("HUNT_SEED=%d, faults for %s", seed, length)
	r := rand.New(rand.NewPCG(seed, 22))
	c := newCluster(t, t.Errorf)
	stopDaemon := startRemover(t, c.endpoints())
	var all []*contender
	start := func() *contender {
		all = append(all, startContender(t, waiterConfig{c.endpoints(), r.Uint64()}))
		return all[len(all)-1]
	}
	running := make([]*contender, waiters)
	for i := range running {
		running[i] = start()
	}
	var stopped sync.WaitGroup
	faults := map[string]int{}
	for began := time.Now(); time.Since(began) < length; pause(t.Context(), between(r, 200*time.Millisecond, 1200*time.Millisecond)) {
		p := r.IntN(waiters)
		switch n := r.IntN(12); {
		case n < 5:
			faults["waiter stopped"]++
			signal, d := running[p].cmd.Process.Signal, between(r, 100*time.Millisecond, 8*time.Second)
			stopped.Go(func() { // an error is that the process was killed
				_ = signal(syscall.SIGSTOP)
				pause(t.Context(), d)
				_ = signal(syscall.SIGCONT)
			})
		case n < 9:
			faults["waiter killed"]++
			running[p].kill()
			running[p] = start()
		default:
			down := []int{r.IntN(members)}
			if n == 11 {
				down = append(down, (down[0]+1)%members)
			}
			faults[fmt.Sprint(len(down), " members killed")]++
			for _, i := range down {
				c.members[i].kill()
			}
			pause(t.Context(), between(r, 100*time.Millisecond, 3*time.Second))
			require.NoError(t, c.restart(t.Context(), down...))
		}
	}
	stopped.Wait()
	for _, p := range running {
		require.NoError(t, p.stdin.Close())
	}
	for i, p := range running {
		select {
		case <-p.ended:
			require.NoError(t, p.err, "waiter %d", i)
		case <-time.After(2 * time.Minute): // 36 turns, behind the locks of a few dead holders
			require.Fail(t, "starved", "waiter %d does not get the locks", i)
		}
	}
	stopDaemon()
	j := newQueueJudge(t, c.connect(c.endpoints()))
	for _, p := range all {
		p.kill()
		j.heard(p.all)
	}
	j.checkExclusion()
	t.Logf("%v: %d turns, %d of them after %d waiters were passed over; longest wait %v", faults, j.turns, j.overtakes, j.passed, j.longest)
	require.Greater(t, j.turns, int(length.Seconds())*5)
	for i, v := range j.violations[:min(20, len(j.violations))] {
		t.Errorf("%d of %d: %s", i+1, len(j.violations), v)
	}
}

// startRemover runs a daemon in this process, with little patience.
func startRemover(t *testing.T, endpoints []string) (stop func()) {
	o := config.Default()
	o.Etcd.Endpoints, o.Ops.Listen, o.Web.Listen = endpoints, "127.0.0.1:0", ""
	o.Reaper.Settle, o.Reaper.Storm.MinLocks = 500*time.Millisecond, 0
	a, err := app.New(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	a.Start()
	return sync.OnceFunc(func() { require.NoError(t, a.Stop(context.Background())) })
}

// queueJudge checks by each revision of etcd that locks were taken in turn, and by what the waiters did that each had one
// holder.
type queueJudge struct {
	layout     protocol.Layout
	tickets    map[string]map[string]int64 // create_revision by key, by name
	tokens     map[string][]int64          // by lock
	ops        map[string]map[int64][]did  // by lock and token
	violations []string

	turns, overtakes, passed int
	longest                  time.Duration
}

// newQueueJudge reads all revisions.
func newQueueJudge(t *testing.T, client *clientv3.Client) *queueJudge {
	layout, err := protocol.NewLayout(prefix)
	require.NoError(t, err)
	j := &queueJudge{layout: layout, tickets: map[string]map[string]int64{}, tokens: map[string][]int64{}, ops: map[string]map[int64][]did{}}
	now, err := client.Get(t.Context(), "end")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Soon)
	defer cancel()
	var same []*clientv3.Event // of one revision
	for resp := range client.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify()) {
		require.NoError(t, resp.Err())
		for _, ev := range resp.Events {
			if len(same) > 0 && same[0].Kv.ModRevision < ev.Kv.ModRevision {
				j.revision(same)
				same = nil
			}
			same = append(same, ev)
		}
		if len(same) > 0 && same[0].Kv.ModRevision >= now.Header.Revision {
			break
		}
		require.NoError(t, client.RequestProgress(ctx))
		if resp.IsProgressNotify() && resp.Header.Revision >= now.Header.Revision {
			break
		}
	}
	require.NoError(t, ctx.Err())
	j.revision(same)
	return j
}

// revision judges the locks that were taken in one revision, and notes its tickets.
func (j *queueJudge) revision(events []*clientv3.Event) {
	gone := map[string]bool{}
	for _, ev := range events {
		gone[string(ev.Kv.Key)] = ev.Type == clientv3.EventTypeDelete
	}
	for _, ev := range events {
		name, field, valid := j.layout.Split(ev.Kv.Key)
		if valid && string(field) == "uuid" && ev.Type == clientv3.EventTypePut {
			j.taken(string(name), string(ev.Kv.Value), ev.Kv.ModRevision, gone)
		}
	}
	for _, ev := range events {
		if key, ticket := strings.CutPrefix(string(ev.Kv.Key), waitersPrefix); ticket {
			name, _, _ := strings.Cut(key, "//")
			if ev.Type == clientv3.EventTypeDelete {
				delete(j.tickets[name], string(ev.Kv.Key))
			} else if j.tickets[name] == nil {
				j.tickets[name] = map[string]int64{string(ev.Kv.Key): ev.Kv.CreateRevision}
			} else {
				j.tickets[name][string(ev.Kv.Key)] = ev.Kv.CreateRevision
			}
		}
	}
}

// taken judges whether a lock was taken in turn, with the keys that are gone in that revision.
func (j *queueJudge) taken(lock, uuid string, token int64, gone map[string]bool) {
	name, _, _ := strings.Cut(lock, "/")
	j.tokens[lock] = append(j.tokens[lock], token)
	j.turns++
	violate := func(format string, args ...any) {
		j.violations = append(j.violations, fmt.Sprintf("%s with token %d: ", lock, token)+fmt.Sprintf(format, args...))
	}
	own := waitersPrefix + name + "//" + uuid
	mine, waited := j.tickets[name][own]
	if !waited {
		if n := len(j.tickets[name]); n > 0 {
			violate("taken without a ticket, while %d wait", n)
		}
		return
	}
	if !gone[own] {
		violate("its ticket remains")
	}
	older, passed := 0, 0
	for key, created := range j.tickets[name] {
		if created < mine {
			older++
			if gone[key] {
				passed++
			}
		}
	}
	if older > 0 {
		j.overtakes++
		j.passed += passed
	}
	if passed > 1 || passed == 0 && older > 0 {
		violate("taken before %d others, of which %d were passed over", older, passed)
	}
}

// heard notes what a waiter has done.
func (j *queueJudge) heard(all []did) {
	for _, d := range all {
		if j.ops[d.Name] == nil {
			j.ops[d.Name] = map[int64][]did{}
		}
		j.ops[d.Name][d.Token] = append(j.ops[d.Name][d.Token], d)
		if d.Kind == acquired {
			j.longest = max(j.longest, d.To.Sub(d.From))
		}
	}
}

// checkExclusion checks that there is an order of what the waiters did in which each lock has at most one holder. What a
// killed one did not say happened at any time.
func (j *queueJudge) checkExclusion() {
	for lock, tokens := range j.tokens {
		var history []porcupine.Operation
		add := func(k kind, token, from, to int64) {
			history = append(history, porcupine.Operation{Input: op{kind: k, token: token}, Call: from, Return: to})
		}
		for _, token := range tokens {
			said := map[kind]bool{}
			for _, d := range j.ops[lock][token] {
				said[d.Kind] = true
				add(d.Kind, token, d.From.UnixNano(), d.To.UnixNano())
			}
			for _, k := range []kind{acquired, freed} {
				if !said[k] {
					add(k, token, 0, math.MaxInt64)
				}
			}
		}
		if got := porcupine.CheckOperationsTimeout(exclusion(), history, time.Minute); got != porcupine.Ok {
			j.violations = append(j.violations, fmt.Sprintf("the history of %s (%d operations) is %s", lock, len(history), got))
		}
		for token := range j.ops[lock] {
			if !slices.Contains(tokens, token) {
				j.violations = append(j.violations, fmt.Sprintf("%s: a holder has token %d, which etcd never had", lock, token))
			}
		}
	}
}
