package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// The locks of the story, and who wants them.
const (
	invoices = "billing/invoices"
	monthly  = "reports/monthly"
	api      = "deploy/api"
	warmup   = "cache/warmup"
	nightly  = "backup/nightly"

	behaves  = "billing-1"
	overruns = "reports-2"
	dies     = "deploy-3"
	waits    = "deploy-4"
	mistakes = "cache-5"
	lags     = "backup-6"
)

// cast makes the workers.
type cast struct {
	client *clientv3.Client
	layout lock.Layout
	post   post
}

// play is a worker's part. To lose a lock is no failure of the demo: somebody
// may try what happens.
func (c *cast) play(ctx context.Context, who string, part func(context.Context) error) error {
	err := part(ctx)
	if errors.Is(err, errLost) {
		c.post(said{who: who, what: "stops, as it must: " + err.Error(), tone: bad})
		return nil
	}
	return err
}

// parts are what the workers do; they enter one after the other so that one can
// follow.
func (c *cast) parts() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		behaves:  c.behave,
		overruns: c.overrun,
		dies:     c.die,
		waits:    c.wait,
		mistakes: c.mistake,
		lags:     c.lag,
	}
}

func (c *cast) worker(host, owner, name, purpose string, alert, unlock time.Duration) *worker {
	return &worker{
		client: c.client, layout: c.layout, post: c.post,
		host: host, owner: owner, name: name, purpose: purpose,
		alert: alert, unlock: unlock, stamp: seconds,
	}
}

// enter waits for the worker's turn and takes the lock, which must be free.
func enter(ctx context.Context, w *worker, after time.Duration) error {
	if err := pause(ctx, after); err != nil {
		return err
	}
	h, err := w.tryLock(ctx, 1)
	if err != nil {
		return err
	}
	if h != nil {
		return errors.New(w.name + " is held by " + h.host)
	}
	w.say(plain, "took %s: %d keys, fencing token %d, alert in %s, unlock in %s",
		w.name, len(w.keys), w.token, secs(w.alert), secs(w.unlock))
	return nil
}

// renew renews every second, n times; negative is for ever.
func renew(ctx context.Context, w *worker, n int) error {
	for i := 0; i != n; i++ {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if err := w.alive(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *cast) behave(ctx context.Context) error {
	w := c.worker(behaves, "billing", invoices, "send the invoices of November", 5*time.Second, 10*time.Second)
	if err := enter(ctx, w, 0); err != nil {
		return err
	}
	const times = 13
	if err := renew(ctx, w, 1); err != nil {
		return err
	}
	w.say(plain, "renewed %s, as it does every second from now on", w.name)
	if err := renew(ctx, w, times-1); err != nil {
		return err
	}
	if err := w.release(ctx); err != nil {
		return err
	}
	w.say(good, "is done: unlocked %s after %d renewals, by deleting its own keys", w.name, times)
	return nil
}

// overrun does not renew until it has overrun its alert by far, but not its
// deadline.
func (c *cast) overrun(ctx context.Context) error {
	w := c.worker(overruns, "reports", monthly, "add up the month", 3*time.Second, 14*time.Second)
	if err := enter(ctx, w, 500*time.Millisecond); err != nil {
		return err
	}
	if err := pause(ctx, 7*time.Second); err != nil {
		return err
	}
	if err := w.alive(ctx); err != nil {
		return err
	}
	w.say(good, "is slow but alive: renewed %s, alert again in %s, unlock in %s", w.name, secs(w.alert), secs(w.unlock))
	return renew(ctx, w, -1)
}

// die takes the lock and is never heard of again.
func (c *cast) die(ctx context.Context) error {
	w := c.worker(dies, "deploy", api, "roll out api 2.7", 3*time.Second, 6*time.Second)
	if err := enter(ctx, w, time.Second); err != nil {
		return err
	}
	if err := pause(ctx, 1500*time.Millisecond); err != nil {
		return err
	}
	w.say(bad, "is killed (it is a goroutine: it ends) and leaves %s behind", w.name)
	return nil
}

// wait wants what another holds.
func (c *cast) wait(ctx context.Context) error {
	w := c.worker(waits, "deploy", api, "roll out api 2.8", 5*time.Second, 10*time.Second)
	if err := pause(ctx, 1500*time.Millisecond); err != nil {
		return err
	}
	since := time.Now()
	h, err := w.tryLock(ctx, 0)
	if err != nil {
		return err
	}
	before := h
	for h != nil {
		w.say(plain, "wants %s too, but %s has it: watches its uuid key from revision %d",
			w.name, h.host, h.revision)
		if err := w.await(ctx, h.revision); err != nil {
			return err
		}
		if h, err = w.tryLock(ctx, 0); err != nil {
			return err
		}
	}
	if before != nil {
		w.say(good, "has %s at last, after %.1f s: fencing token %d (that of %s was %d)",
			w.name, time.Since(since).Seconds(), w.token, before.host, before.token)
	}
	return renew(ctx, w, -1)
}

// mistake gets its times wrong by writing milliseconds.
func (c *cast) mistake(ctx context.Context) error {
	w := c.worker(mistakes, "cache", warmup, "warm the cache up", 3*time.Second, 6*time.Second)
	w.stamp = milliseconds
	return enter(ctx, w, 2*time.Second)
}

// behind is how far the clock of the worker that lags is.
const behind = time.Hour

// lag does all as it should, by a clock that is behind: by ours, its lock was past
// its deadline before it was taken.
func (c *cast) lag(ctx context.Context) error {
	w := c.worker(lags, "backup", nightly, "back up the night", 5*time.Second, 8*time.Second)
	w.stamp = func(t time.Time) string { return seconds(t.Add(-behind)) }
	if err := enter(ctx, w, 3*time.Second); err != nil {
		return err
	}
	w.say(plain, "has a clock that is an hour behind: by unlocker's, this lock was to be unlocked %s ago", minutes(behind-w.unlock))
	return renew(ctx, w, -1)
}

func minutes(d time.Duration) string { return fmt.Sprintf("%d minutes", int(d.Minutes())) }

func secs(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
