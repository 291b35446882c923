package sim

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// holder is a client of protocol 1: what it does, and when. Times are since the
// beginning, and zero is never.
type holder struct {
	Name string
	Host int
	// Interval is between renewals, 0 for none; TTL is how far a deadline lies ahead;
	// Retry is after which pause it tries again what etcd did not answer.
	Start, Interval, TTL, Retry time.Duration
	// What it stamps, and whether in whole seconds.
	LockedAt, AliveAt, Seconds bool
	Clock                      clock
	// It dies or releases; from Stall on it does nothing for a while.
	Dies, Releases   time.Duration
	Stall, StallsFor time.Duration
	// Note is between answers to questions, which are no renewals.
	Note time.Duration
	// Deadline is written in place of one, "none" for none.
	Deadline string
	// Renews is what each renewal stamps in place of AliveAt, the last one also of all further ones: a alive_at, l another
	// locked_at, - nothing.
	Renews string
	// Fixed renews with the deadline of the acquisition.
	Fixed bool
	// Leased is a field that it writes with a lease; an unknown one, as an etcd mutex has, does not belong to the lock.
	Leased string
	// Big is the size of a value of its own that it writes with the acquisition.
	Big int
	// Blind leaves a deadline without a uuid when it releases.
	Blind bool
}

// last is when its last sign of life is due that nothing keeps it from.
func (h holder) last() time.Duration {
	if h.Interval == 0 || h.Dies == 0 {
		return h.Start
	}
	return h.Start + (h.Dies - h.Start).Truncate(h.Interval)
}

const (
	prefix = "/mutexes/"
	// answer is how long a holder waits for etcd.
	answer = 5 * time.Second
)

// holding is a holder at work on one lock.
type holding struct {
	*holder
	w    *world
	uuid string

	mu sync.Mutex // of what follows: a trap has the holder renew beside its own loop
	// first is the deadline of the acquisition.
	first string
	// renewed is how often it has renewed.
	renewed int
}

func key(name, field string) string { return prefix + name + "/" + field }

// run takes the lock and keeps it, once.
func (h *holding) run(ctx context.Context) {
	sleep(ctx, h.Start)
	if h.Dies > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Dies-h.Start)
		defer cancel()
	}
	defer h.w.judge.died(h)
	for !h.acquire(ctx) {
		if sleep(ctx, h.Retry); ctx.Err() != nil {
			return
		}
	}
	if h.Leased != "" {
		h.lease(ctx)
	}
	held, stop := context.WithCancel(ctx)
	defer stop()
	if h.Releases > 0 {
		time.AfterFunc(h.Releases-h.w.elapsed(), stop)
	}
	if h.Note > 0 {
		h.w.people.Go(func() { h.notes(held) })
	}
	h.renewals(held)
	if ctx.Err() == nil && held.Err() != nil {
		h.release(ctx)
	}
}

// renewals returns when the lock is lost.
func (h *holding) renewals(ctx context.Context) {
	for pause := h.Interval; ; {
		if pause == 0 {
			<-ctx.Done()
			return
		}
		if now := h.w.elapsed(); h.Stall > now && h.Stall <= now+pause {
			pause = max(pause, h.Stall+h.StallsFor-now)
		}
		if sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		pause = h.Interval
		mine, err := h.commit(ctx, h.ifMine(), h.renewal())
		switch {
		case err != nil:
			pause = h.Retry
		case !mine:
			return
		}
	}
}

func (h *holding) ifMine() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(key(h.Name, "uuid")), "=", h.uuid)
}

// renewal is what the next renewal writes.
func (h *holding) renewal() []clientv3.Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Renews == "" {
		return h.stamps("alive_at", h.AliveAt)
	}
	kind := h.Renews[min(h.renewed, len(h.Renews)-1)]
	h.renewed++
	field, wanted := map[byte]string{'a': "alive_at", 'l': "locked_at"}[kind]
	return h.stamps(field, wanted)
}

// acquire reports whether the holder has the lock, perhaps since an answer was lost.
func (h *holding) acquire(ctx context.Context) bool {
	taken, err := h.commit(ctx, clientv3.Compare(clientv3.Version(key(h.Name, "uuid")), "=", 0), h.taking())
	if err != nil || taken {
		return taken
	}
	mine, err := h.commit(ctx, h.ifMine(), nil)
	return err == nil && mine
}

// taking is what an acquisition writes.
func (h *holding) taking() []clientv3.Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.first = ""
	ops := append(h.stamps("locked_at", h.LockedAt), clientv3.OpPut(key(h.Name, "uuid"), h.uuid), clientv3.OpPut(key(h.Name, "hostname"), h.uuid+".example"))
	if h.Big > 0 {
		ops = append(ops, clientv3.OpPut(key(h.Name, "payload"), strings.Repeat("x", h.Big)))
	}
	return ops
}

// native is the key of an etcd mutex of the name of a lock.
const native = "694d71ddacfda227"

func (h *holding) lease(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	if l, err := h.w.hosts[h.Host].Grant(ctx, 900); err == nil {
		_, _ = h.commit(ctx, h.ifMine(), []clientv3.Op{clientv3.OpPut(key(h.Name, h.Leased), h.uuid, clientv3.WithLease(l.ID))})
	}
}

func (h *holding) release(ctx context.Context) {
	var ops []clientv3.Op
	for _, field := range []string{"uuid", "hostname", "locked_at", "alive_at", "auto_unlock_at", "status", "payload"} {
		ops = append(ops, clientv3.OpDelete(key(h.Name, field)))
	}
	if _, err := h.commit(ctx, h.ifMine(), ops); err == nil && h.Blind {
		_, _ = h.w.hosts[h.Host].Put(ctx, key(h.Name, "auto_unlock_at"), "1800000000")
	}
}

// notes writes what is no sign of life.
func (h *holding) notes(ctx context.Context) {
	for i := 0; ; i++ {
		if sleep(ctx, h.Note); ctx.Err() != nil {
			return
		}
		_, _ = h.commit(ctx, h.ifMine(), []clientv3.Op{
			clientv3.OpPut(key(h.Name, "status"), strconv.Itoa(i)), clientv3.OpPut(key(h.Name, "stack"), "goroutine 1"),
			clientv3.OpPut(key(h.Name, "answered_at"), strconv.FormatInt(h.w.epoch.Add(h.w.elapsed()).Unix(), 10)),
		})
	}
}

// stamps are the deadline and, where wanted, the time by the holder's clock.
func (h *holding) stamps(field string, wanted bool) (ops []clientv3.Op) {
	at := h.w.elapsed()
	now := h.w.epoch.Add(at + h.Clock.apart(at))
	text := func(t time.Time) string {
		if h.Seconds {
			return strconv.FormatInt(t.Unix(), 10)
		}
		return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
	}
	deadline := text(now.Add(h.TTL))
	if h.Fixed {
		h.first = cmp.Or(h.first, deadline)
		deadline = h.first
	}
	if h.Deadline != "" {
		deadline = h.Deadline
	}
	if deadline != "none" {
		ops = append(ops, clientv3.OpPut(key(h.Name, "auto_unlock_at"), deadline))
	}
	made := stamps{deadline: deadline}
	if wanted {
		made.at = text(now)
		ops = append(ops, clientv3.OpPut(key(h.Name, field), made.at))
	}
	h.w.judge.intends(h, made, at, now)
	return ops
}

func (h *holding) commit(ctx context.Context, if1 clientv3.Cmp, then []clientv3.Op) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	resp, err := h.w.hosts[h.Host].Txn(ctx).If(if1).Then(then...).Commit()
	return err == nil && resp.Succeeded, err
}
