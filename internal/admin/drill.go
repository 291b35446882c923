package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Drill configures a drill, which lets a lock of its own expire.
type Drill struct {
	// Replicas has a client for each replica. Prometheus and Alertmanager are nil if they are not to be asked.
	Replicas                 []*client.Client
	Prometheus, Alertmanager *client.Client
	// AlertAfter and UnlockAfter are the times of the lock, from its acquisition on.
	AlertAfter, UnlockAfter time.Duration
	// Report is called for each step that is seen, concurrently.
	Report func(Step)
}

// Step is a step of a drill: when it was seen, or 0 and why not, which is not safe to print.
type Step struct {
	Name  string
	After time.Duration // since the acquisition
	Why   string
}

// drill is a drill that has its lock.
type drill struct {
	Drill
	*Admin
	name     string
	lock     *mutex.Lock
	began    time.Time
	refuse   context.CancelCauseFunc
	kept     atomic.Int32 // replicas that would not remove the lock
	watching sync.WaitGroup
	steps    []*Step
}

// Drill takes a lock, does not renew it, and waits until each step was seen, up to the next holder, or ctx ends.
// The error says why there was no drill, or that no replica would remove the lock. In any case it is released.
func (a *Admin) Drill(ctx context.Context, o Drill) ([]*Step, error) {
	var reasons []string
	for _, c := range o.Replicas {
		if err := ask(c, removes)(ctx); err != nil {
			reasons = append(reasons, fmt.Sprintf("%s %s", c.URL(), err))
		}
	}
	if len(reasons) == len(o.Replicas) {
		return nil, errors.New("no replica would remove the lock, so none was taken: " + strings.Join(reasons, "; "))
	}
	locks, err := mutex.New(a.client.Client, mutex.Prefix(a.Prefix()), mutex.Owner("unlocker drill"), mutex.Backtrace(false), mutex.Observe(nil),
		mutex.Purpose("drill by "+Who()+": nothing is wrong, this lock expires to prove that alerts and removals work"),
		mutex.Expect(o.AlertAfter), mutex.Patience(o.UnlockAfter))
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	d := &drill{Drill: o, Admin: a, name: "unlocker-drill/" + cmp.Or(host, "unknown"), began: time.Now()}
	// An attempt that Ctrl-C cut off might take the lock all the same.
	first, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.Etcd.DialTimeout+a.config.Etcd.RequestTimeout)
	defer cancel()
	if d.lock, err = locks.TryLock(first, d.name); err != nil {
		return nil, a.failed(ctx, err, etcd.ReadWrite)
	}
	err = d.watch(ctx, locks)
	return d.steps, errors.Join(err, d.release(ctx, d.lock))
}

// ask returns a question to the only daemon of a client.
func ask(c *client.Client, f func(context.Context, client.Daemon) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		c.Each(ctx, func(ctx context.Context, _ int, from client.Daemon) { err = f(ctx, from) })
		return err
	}
}

// removes returns why a replica removes nothing.
func removes(ctx context.Context, from client.Daemon) error {
	s, err := from.Status(ctx)
	switch {
	case err != nil:
		return err
	case s.Mode != verdict.Enforce:
		return fmt.Errorf("removes nothing: its reaper.mode is %s", s.Mode)
	case len(s.Holds) > 0:
		return fmt.Errorf("has removals on hold: %s", s.Holds[0].Reason)
	}
	return nil
}

func (d *drill) watch(ctx context.Context, locks *mutex.Client) error {
	all, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	d.refuse = refuse
	held, gone := context.WithCancel(all) // what was not seen by the removal will not be
	defer gone()
	for _, c := range d.Replicas {
		d.step(held, "seen by "+c.URL(), ask(c, d.seen))
		d.step(held, "overdue at "+c.URL(), ask(c, func(ctx context.Context, from client.Daemon) error {
			return d.shown(ctx, from, protocol.Overdue.String(), protocol.Expired.String())
		}))
	}
	if d.Prometheus != nil {
		d.step(held, "overdue in Prometheus", ask(d.Prometheus, d.scraped))
	}
	if d.Alertmanager != nil {
		d.step(held, "alert in Alertmanager", ask(d.Alertmanager, d.alerting))
	}
	d.step(all, "removed", func(ctx context.Context) error { return d.removed(ctx, gone) })
	d.step(all, "record written", d.recorded)
	for _, c := range d.Replicas {
		d.step(all, "forced unlock listed by "+c.URL(), ask(c, d.listed))
	}
	d.step(all, "handed over to a waiter", func(ctx context.Context) error {
		next, err := locks.Lock(ctx, d.name)
		if err == nil {
			err = d.release(ctx, next)
		}
		return err
	})
	d.watching.Wait()
	switch err := context.Cause(all); {
	case errors.Is(ctx.Err(), context.Canceled):
		return ErrInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		return nil // the steps say what is missing
	default:
		return err
	}
}

// step repeats look until it has no error, which is when the step is seen, or until ctx ends.
func (d *drill) step(ctx context.Context, name string, look func(context.Context) error) {
	const drillPoll = 250 * time.Millisecond // the time between two looks
	s := &Step{Name: name, Why: "nothing was seen of it"}
	d.steps = append(d.steps, s)
	d.watching.Go(func() {
		for ctx.Err() == nil {
			err := look(ctx)
			if err == nil {
				s.Why, s.After = "", time.Since(d.began)
				d.Report(*s)
				return
			}
			if ctx.Err() == nil {
				s.Why = err.Error()
			}
			select {
			case <-time.After(drillPoll):
			case <-ctx.Done():
			}
		}
	})
}

// shown returns an error unless the watch of a replica has shown the lock in one of the states.
func (d *drill) shown(ctx context.Context, from client.Daemon, states ...string) error {
	const similar = 100 // names that contain this one
	page, err := from.Locks(ctx, api.Query{States: states, Contains: d.name, Limit: similar})
	if err == nil && !slices.ContainsFunc(page.Locks, func(l api.Lock) bool { return l.Name == d.name && l.UUID == d.lock.UUID() }) {
		err = fmt.Errorf("does not show the lock as %s", strings.Join(states, " or "))
	}
	return err
}

// seen ends the drill where no replica would remove the lock, which only its verdict says.
func (d *drill) seen(ctx context.Context, from client.Daemon) error {
	if err := d.shown(ctx, from, api.States()...); err != nil {
		return err
	}
	l, err := from.Lock(ctx, d.name)
	if err != nil || l == nil || l.Verdict == nil {
		return cmp.Or(err, errors.New("does not show the lock"))
	}
	enforced := l.Verdict.Mode == verdict.Enforce && l.Verdict.Reason != verdict.ByBrake && l.Verdict.Reason != verdict.ByPause
	if !enforced && int(d.kept.Add(1)) == len(d.Replicas) {
		d.refuse(fmt.Errorf("no replica would remove the lock, so it is released: %s says: lock %s %s", from.URL, quoted(d.name), l.Explanation))
	}
	return nil
}

// scraped returns an error unless Prometheus has scraped the metrics of the lock, not those of an earlier drill.
func (d *drill) scraped(ctx context.Context, from client.Daemon) error {
	n, err := from.Series(ctx, fmt.Sprintf("timestamp(unlocker_lock_alert_timestamp_seconds{lock=%q}) >= %d", d.name, d.began.Unix()))
	if err == nil && n == 0 {
		err = errors.New("it has no unlocker_lock_alert_timestamp_seconds of the lock")
	}
	return err
}

func (d *drill) alerting(ctx context.Context, from client.Daemon) error {
	alerts, err := from.Alerts(ctx, d.name)
	// Those of an earlier drill began before.
	alerts = slices.DeleteFunc(alerts, func(a client.Alert) bool { return a.StartsAt.Before(d.began) })
	switch {
	case err == nil && len(alerts) == 0:
		return errors.New("there was none before the lock was removed")
	case err == nil && alerts[0].Status.State == "suppressed":
		return errors.New("it is suppressed: a silence or an inhibition applies")
	}
	return err
}

// removed waits until the uuid is deleted, and calls gone.
func (d *drill) removed(ctx context.Context, gone func()) error {
	key := d.layout.Key(d.name, protocol.FieldUUID.String())
	for resp := range d.client.Watch(ctx, key, clientv3.WithRev(d.lock.Token()+1)) {
		if len(resp.Events) > 0 { // nobody can put it before
			gone()
			return nil
		}
	}
	return errors.New("the watch ended")
}

func (d *drill) recorded(ctx context.Context) error {
	audit := d.config.AuditKeys()
	resp, err := d.client.Get(ctx, protocol.RecordKey(audit, d.name, d.lock.Token()))
	if err != nil || len(resp.Kvs) == 0 {
		return cmp.Or(d.failedOn(ctx, err, etcd.Read, audit), errors.New("there is none under "+audit))
	}
	_, r, err := records.Parse(resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
	if err == nil && (r.UUID != d.lock.UUID() || r.Trigger != verdict.Expiry) {
		err = fmt.Errorf("it says: trigger %s, by %s", r.Trigger, cmp.Or(r.Who, r.Replica))
	}
	return err
}

// listed says what the lock waits for as long as it is there.
func (d *drill) listed(ctx context.Context, from client.Daemon) error {
	forced, err := from.Forced(ctx, d.name, 1)
	if err != nil || len(forced) > 0 && forced[0].UUID == d.lock.UUID() && forced[0].Trigger == verdict.Expiry {
		return err
	}
	if l, err := from.Lock(ctx, d.name); err == nil && l != nil {
		return errors.New("the lock " + l.Explanation)
	}
	return errors.New("does not list it")
}

// release releases a lock of the drill, if it is still there. Past its deadline the client would do so in the background.
func (d *drill) release(ctx context.Context, l *mutex.Lock) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.config.Etcd.RequestTimeout)
	defer cancel()
	err := l.Unlock(ctx)
	if errors.Is(err, mutex.ErrLost) {
		_, _, err = d.store.Unlock(ctx, d.name, lockstore.Held{UUID: l.UUID()}, nil)
	}
	if errors.Is(err, lockstore.ErrNoLock) || errors.Is(err, lockstore.ErrOtherUUID) || errors.Is(err, lockstore.ErrNoUUID) {
		return nil
	}
	return d.failed(ctx, err, etcd.ReadWrite)
}
