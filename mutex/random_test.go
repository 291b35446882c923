//go:build go1.25

package mutex_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// TestOneHolderAtATime runs workers on one lock, or on slots, under random faults, next to a daemon without
// grace, an operator who removes locks that are held, and a client that deletes tickets and puts others. No two of them
// may work at the same time on one lock, nor one whose deadline in etcd has passed. Who loses the lock to the operator is
// told, no lock of nobody stays until the daemon comes, and they leave nothing.
// MUTEX_HISTORIES is how many histories there are, 50 unless told otherwise.
func TestOneHolderAtATime(t *testing.T) {
	histories, err := strconv.ParseUint(cmp.Or(os.Getenv("MUTEX_HISTORIES"), "50"), 10, 64)
	require.NoError(t, err)
	clocks := newClient(t, dial(), mutex.Patience(patience), mutex.Backtrace(false))
	var steps atomic.Int64
	for seed := range histories {
		if t.Failed() {
			return // one is enough
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			stuck := time.AfterFunc(time.Minute, func() { panic("a goroutine spins, and virtual time does not go on") })
			defer stuck.Stop()
			holdByClocks(t, rand.New(rand.NewPCG(seed, 400)), clocks)
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				_, admin := connect()
				draw := rand.New(rand.NewPCG(seed, 300))
				h := &history{etcd: admin.Client, working: map[string]string{}, held: map[string]*mutex.Lock{}, claims: map[string]claim{}, removed: map[string]time.Time{}}
				var all errgroup.Group
				all.Go(func() error { return h.removeExpired(ctx) })
				if draw.IntN(2) == 0 {
					all.Go(func() error { return forgeTickets(ctx, rand.New(rand.NewPCG(seed, 200)), admin.Client) })
				}
				if draw.IntN(2) == 0 {
					all.Go(func() error { return h.removeHeld(ctx, rand.New(rand.NewPCG(seed, 201))) })
				}
				calm := time.Duration(draw.IntN(30)) * time.Second
				for id := range 1 + draw.Uint64N(5) {
					client, link := connect(mutex.Patience(patience))
					w := worker{client, h, h.peer(link, rand.New(rand.NewPCG(seed, 500+id))), rand.New(rand.NewPCG(seed, id)), nil, &steps}
					if seed%2 == 1 {
						w.opts = append(w.opts, mutex.Slots([]int{2, 2, 2, 1, 3}[(id+seed/2)%5]))
					}
					all.Go(func() error { return w.peer.disturbAtRandom(ctx, rand.New(rand.NewPCG(seed, 100+id)), calm) })
					all.Go(func() (err error) {
						for ctx.Err() == nil && err == nil {
							err = w.work(ctx)
						}
						return err
					})
				}
				err := all.Wait()
				<-time.After(time.Minute) // what was abandoned is released
				require.NoError(t, err)
				left, err := admin.Get(t.Context(), "/mutexes/", clientv3.WithPrefix())
				require.NoError(t, err)
				require.Empty(t, left.Kvs)
			})
		})
	}
	t.Logf("%d steps", steps.Load())
	if realEtcd == "" {
		require.Greater(t, steps.Load(), int64(6*histories))
	}
}

const (
	// patience is that of the locks, unless Alive changes it.
	patience = 20 * time.Second
	// tellTime is how long a client that has no faults takes to see who holds its lock, or to release one of nobody: an
	// attempt, and a pause.
	tellTime = 6 * time.Second
)

// holdByClocks holds a lock while one of the two clocks is wrong: the wall clock is set back, or the monotonic one stops as
// the machine is suspended. In a bubble times have no monotonic reading, so this is in none, and for time that passes
// the last renewal moves back.
func holdByClocks(t *testing.T, random *rand.Rand, client *mutex.Client) {
	renewed, passed, suspended := time.Now(), time.Duration(0), random.IntN(2) == 0
	l, err := client.TryLock(t.Context(), t.Name()) // one of its own: what was lost is released later
	require.NoError(t, err)
	defer func() { _ = l.Unlock(context.Background()) }()
	for passed < patience {
		d := time.Duration(random.Int64N(int64(patience / 4)))
		switch wrong := random.IntN(3) == 0; {
		case random.IntN(5) == 0:
			if now := time.Now(); l.Alive(t.Context()) == nil {
				renewed, passed = now, 0
			}
			continue
		case wrong && !suspended:
			l.Pass(-d, 0)
			continue
		case wrong:
			l.Pass(d, 0)
		default:
			l.Pass(d, d)
		}
		if passed += d; l.Held() != nil {
			require.GreaterOrEqual(t, passed+time.Since(renewed), patience*9/10, "lost too early")
		}
	}
	require.Error(t, l.Held(), "held after its deadline")
}

// history is what the workers of one have in common, and what the judges know of them.
type history struct {
	etcd *clientv3.Client // without faults

	mu      sync.Mutex // not to be held in a call of etcd's
	calls   int
	working map[string]string      // the uuid of who works, by lock
	held    map[string]*mutex.Lock // by uuid, what was returned and not released: nil if it was lost
	claims  map[string]claim       // by uuid
	removed map[string]time.Time   // when the operator removed the lock, by uuid
}

// peer is the connection of a worker.
type peer struct {
	*memetcd.Link
	h    *history
	turn chan struct{} // of who changes the faults

	call int       // of Lock that has not returned, 0 for none
	well time.Time // since when it has no faults, zero while it has
	late bool      // each second transaction is late, and each release
}

// claim is the call of Lock that has sent a uuid.
type claim struct {
	peer *peer
	call int
}

// peer sees the claims of a connection.
func (h *history) peer(link *memetcd.Link, random *rand.Rand) *peer {
	p := &peer{Link: link, h: h, turn: make(chan struct{}, 1), well: time.Now()}
	link.OnRequest(func(req memetcd.Message) (f memetcd.Faults) {
		txn, is := req.(*etcdserverpb.TxnRequest)
		if !is {
			return f
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		release := false
		for _, op := range txn.Success {
			release = release || op.GetRequestDeleteRange() != nil && strings.HasSuffix(string(op.GetRequestDeleteRange().Key), "/uuid")
			if put := op.GetRequestPut(); put != nil && strings.HasSuffix(string(put.Key), "/uuid") {
				h.claims[string(put.Value)] = claim{p, p.call}
			}
		}
		if p.late && (release || random.IntN(2) == 0) {
			f.Request = time.Duration(random.Int64N(int64(10 * time.Second)))
		}
		return f
	})
	return p
}

// fault replaces the faults.
func (p *peer) fault(f memetcd.Faults, late bool) {
	p.Set(f)
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.well, p.late = (time.Time{}), late; f == (memetcd.Faults{}) && !late {
		p.well = time.Now()
	}
}

// wellAt returns for how long there have been no faults at a time.
func (p *peer) wellAt(at time.Time) time.Duration {
	if p.well.IsZero() {
		return 0
	}
	return at.Sub(p.well)
}

type worker struct {
	*mutex.Client
	*history
	peer   *peer
	random *rand.Rand
	opts   []mutex.Option
	steps  *atomic.Int64
}

// lock calls Lock, or TryLock, which has no ticket.
func (w worker) lock(ctx context.Context, try bool, opts []mutex.Option) (*mutex.Lock, error) {
	lock := w.Lock
	if try {
		lock = w.TryLock
	}
	w.mu.Lock()
	w.calls++
	w.peer.call = w.calls
	w.mu.Unlock()
	l, err := lock(ctx, "a", opts...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peer.call = 0; err == nil {
		w.held[l.UUID()] = l
	}
	return l, err
}

// unlock returns an error of the judges only.
func (w worker) unlock(ctx context.Context, l *mutex.Lock) (released bool, err error) {
	err = l.Unlock(ctx)
	lost := errors.Is(err, mutex.ErrLost)
	if err != nil && !lost {
		return false, nil
	}
	w.mu.Lock()
	if w.held[l.UUID()] = nil; !lost {
		delete(w.held, l.UUID())
	}
	w.mu.Unlock()
	_, err = w.fields(ctx, l)
	return true, err
}

// fields returns what etcd has of a lock, and an error where that has something of a holder before.
func (h *history) fields(ctx context.Context, l *mutex.Lock) (map[string]string, error) {
	prefix := "/mutexes/" + l.Name() + "/"
	resp, err := h.etcd.Get(context.WithoutCancel(ctx), prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	fields, token := make(map[string]string), int64(math.MaxInt64)
	for _, kv := range resp.Kvs {
		field := strings.TrimPrefix(string(kv.Key), prefix)
		if fields[field] = string(kv.Value); field == "uuid" {
			token = kv.CreateRevision
		}
	}
	for _, kv := range resp.Kvs {
		if kv.ModRevision < token {
			return nil, fmt.Errorf("at %v %s is left of a holder before", time.Now(), kv.Key)
		}
	}
	return fields, nil
}

// believes returns an error where a worker may not believe that it holds a lock: it ends in etcd, or was removed, of
// which the worker should have been told.
func (w worker) believes(ctx context.Context, l *mutex.Lock) error {
	fields, err := w.fields(ctx, l)
	if err != nil {
		return err
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, is := w.removed[l.UUID()]; is {
		if now.Sub(at) > tellTime && w.peer.wellAt(now) > tellTime {
			return fmt.Errorf("at %v %s was not told that it was removed at %v", now, l.UUID(), at)
		}
		return nil
	}
	at, err := protocol.ParseTimestamp([]byte(fields["auto_unlock_at"]))
	if left := at.Time().Sub(now); fields["uuid"] != l.UUID() || err != nil || left <= 0 {
		return fmt.Errorf("at %v %s believes that it holds the lock, and etcd has %v", now, l.UUID(), fields)
	}
	return nil
}

// begin begins a step of work, and end ends it.
func (h *history) begin(l *mutex.Lock) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	other := h.working[l.Name()]
	if h.removed[l.UUID()].IsZero() {
		if h.working[l.Name()] = l.UUID(); other != "" && h.removed[other].IsZero() {
			return fmt.Errorf("two holders at %v", time.Now())
		}
	}
	return nil
}

func (h *history) end(l *mutex.Lock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.working[l.Name()] == l.UUID() {
		delete(h.working, l.Name())
	}
}

// work takes the lock and works in steps as long as it may.
func (w worker) work(ctx context.Context) (err error) {
	random := w.random
	opts, ends := slices.Clip(w.opts), random.IntN(6)
	if ends == 0 || random.IntN(2) == 0 {
		opts = append(opts, mutex.KeepAlive(time.Minute))
	}
	waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	l, err := w.lock(waiting, random.IntN(4) == 0, opts)
	if err != nil {
		rest(ctx, 100*time.Millisecond)
		return nil
	}
	var renewing errgroup.Group
	defer func() { _ = renewing.Wait() }()
	defer func() {
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		released, failed := false, error(nil)
		if random.IntN(3) == 0 {
			released, failed = w.unlock(short, l)
		}
		if !released {
			_, failed = w.unlock(context.WithoutCancel(ctx), l)
		}
		err = cmp.Or(err, failed)
	}()
	switch ends {
	case 0: // it is released as the first renewal begins, and the release is late
		select {
		case w.peer.turn <- struct{}{}:
			w.peer.fault(memetcd.Faults{}, true)
			rest(ctx, time.Until(l.Deadline().Add(patience/10-patience+patience/3)))
			_, err = w.unlock(context.WithoutCancel(ctx), l)
			w.peer.fault(memetcd.Faults{}, false)
			<-w.peer.turn
		default:
		}
		return err
	case 1: // or while another does
		renewing.Go(func() error { return l.Alive(ctx, mutex.Status("renewed")) })
		return nil
	}
	held := l.Context(context.WithoutCancel(ctx))
	for range random.IntN([]int{2, 20}[random.IntN(2)]) {
		if held.Err() != nil || ctx.Err() != nil {
			break
		}
		if err := w.begin(l); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(random.Int64N(int64(3 * time.Second)))):
		case <-held.Done():
		}
		err := w.believes(ctx, l)
		if w.end(l); err != nil {
			return err
		}
		w.steps.Add(1)
		if random.IntN(3) == 0 {
			renewing, cancel := context.WithTimeout(held, 10*time.Second)
			if random.IntN(3) == 0 {
				_ = l.Alive(renewing, mutex.Expect(time.Second), mutex.Patience(time.Duration(2+random.IntN(40))*time.Second))
			} else {
				_ = l.Alive(renewing)
			}
			cancel()
		}
	}
	if random.IntN(3) == 0 && held.Err() == nil {
		<-held.Done() // it hangs
		return w.believes(ctx, l)
	}
	return nil
}

// disturbAtRandom changes the faults of a client, and lifts them for a time.
func (p *peer) disturbAtRandom(ctx context.Context, random *rand.Rand, calm time.Duration) error {
	for ctx.Err() == nil {
		p.turn <- struct{}{}
		for range 1 + random.IntN(3) {
			faults := []memetcd.Faults{{}, {}, {Request: 10 * time.Millisecond}, {Refuse: true}, memetcd.Unreachable(), {HoldAnswers: true}, {HoldRequests: true},
				{NoLeader: true}, {Lag: 5 * time.Second}, {Request: time.Duration(random.Int64N(int64(8 * time.Second)))}, {Answer: time.Duration(random.Int64N(int64(8 * time.Second)))}}
			n := random.IntN(len(faults))
			p.fault(faults[n], n == 0)
			if random.IntN(5) == 0 {
				p.Break()
			}
			rest(ctx, time.Duration(random.Int64N(int64(20*time.Second))))
		}
		p.fault(memetcd.Faults{}, false)
		<-p.turn
		rest(ctx, time.Duration(random.Int64N(int64(calm+time.Second))))
	}
	return nil
}

// pick returns a lock that is held, if one is, and the connection of its holder.
func (h *history) pick() (l *mutex.Lock, p *peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uuid, held := range h.held {
		if held != nil {
			l, p = held, h.claims[uuid].peer
		}
	}
	return l, p
}

// removeHeld is an operator who removes locks that are held, the holder being cut off meanwhile or not.
func (h *history) removeHeld(ctx context.Context, random *rand.Rand) error {
	for ctx.Err() == nil {
		rest(ctx, time.Duration(random.Int64N(int64(15*time.Second))))
		l, p := h.pick()
		if l == nil {
			continue
		}
		p.turn <- struct{}{}
		p.fault([]memetcd.Faults{{}, memetcd.Unreachable(), {NoLeader: true}}[random.IntN(3)], false)
		rest(ctx, time.Duration(random.Int64N(int64(4*time.Second))))
		key := "/mutexes/" + l.Name() + "/"
		h.mu.Lock()
		h.removed[l.UUID()] = time.Now()
		h.mu.Unlock()
		txn, err := h.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key+"uuid"), "=", l.Token())).
			Then(clientv3.OpDelete(key, clientv3.WithPrefix())).Commit()
		if err != nil || !txn.Succeeded { // it was released
			h.mu.Lock()
			delete(h.removed, l.UUID())
			h.mu.Unlock()
		}
		rest(ctx, time.Duration(random.Int64N(int64(4*time.Second))))
		if resp, err := h.etcd.Get(ctx, "/"); err == nil && random.IntN(2) == 0 {
			_, _ = h.etcd.Compact(ctx, resp.Header.Revision)
			p.Break()
		}
		p.fault(memetcd.Faults{}, false)
		rest(ctx, 2*tellTime)
		<-p.turn
	}
	return nil
}

// forgeTickets deletes tickets and puts others.
func forgeTickets(ctx context.Context, random *rand.Rand, etcd *clientv3.Client) error {
	from, end := protocol.TicketsOf("/unlocker/waiters/mutexes/", "a")
	for ctx.Err() == nil {
		if resp, err := etcd.Get(ctx, from, clientv3.WithRange(end)); err == nil && len(resp.Kvs) > 0 {
			_, _ = etcd.Delete(ctx, string(resp.Kvs[random.IntN(len(resp.Kvs))].Key))
		}
		if random.IntN(3) == 0 {
			_, _ = etcd.Put(ctx, fmt.Sprint(from, random.IntN(100)), "forged")
		}
		rest(ctx, time.Duration(random.Int64N(int64(20*time.Second))))
	}
	return nil
}

// removeExpired is a daemon that removes locks at their deadline. It waits a second for the client where nobody has the
// lock: a call of Lock has failed, or Unlock has succeeded, and etcd has carried out an attempt after that.
func (h *history) removeExpired(ctx context.Context) error {
	for ctx.Err() == nil {
		resp, err := h.etcd.Get(ctx, "/mutexes/", clientv3.WithPrefix())
		if err != nil {
			resp = &clientv3.GetResponse{} // ctx has ended
		}
		values := make(map[string]string)
		for _, kv := range resp.Kvs {
			values[string(kv.Key)] = string(kv.Value)
		}
		for _, kv := range resp.Kvs {
			name, is := strings.CutSuffix(string(kv.Key), "auto_unlock_at")
			at, err := protocol.ParseTimestamp(kv.Value)
			if !is || err != nil || time.Now().Before(at.Time()) {
				continue
			}
			if h.nobodys(values[name+"uuid"], at.Time()) {
				if late := time.Since(at.Time()); late > time.Second {
					return fmt.Errorf("at %v %s of nobody stays", time.Now(), name)
				}
				continue
			}
			_, _ = h.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)).
				Then(clientv3.OpDelete(name, clientv3.WithPrefix())).Commit()
		}
		rest(ctx, 200*time.Millisecond)
	}
	return nil
}

// nobodys reports whether the client should have released a lock by its deadline, as it could.
func (h *history) nobodys(uuid string, deadline time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.claims[uuid]
	_, held := h.held[uuid]
	return c.peer != nil && !held && c.call != c.peer.call && c.peer.wellAt(deadline) > tellTime
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
