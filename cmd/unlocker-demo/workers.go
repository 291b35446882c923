package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// The workers' locks.
const (
	invoices  = "billing/invoices"
	monthly   = "reports/monthly"
	deployAPI = "deploy/api"
	warmup    = "cache/warmup"
	nightly   = "backup/nightly"
)

type worker struct {
	host, about          string
	name, owner, purpose string        // of the lock
	alert, unlock        time.Duration // from now, at each renewal
	idle                 time.Duration // before the first renewal
	renewals             int           // one a second, then it unlocks; negative: for ever; 0: it is killed
	milliseconds         bool          // in its timestamps
	slowBy               time.Duration // its clock

	client *clientv3.Client
	report *report
	starts time.Duration // after the first worker
	uuid   string
}

func workers() []*worker {
	return []*worker{{
		host: "billing-1", about: "behaves: renews its lock every second and unlocks it when done",
		name: invoices, owner: "billing", purpose: "send the invoices of November",
		alert: 5 * time.Second, unlock: 10 * time.Second, renewals: 13,
	}, {
		host: "reports-2", about: "is slow: renews its lock long after the alert time",
		name: monthly, owner: "reports", purpose: "compute the monthly report",
		alert: 3 * time.Second, unlock: 14 * time.Second, idle: 6 * time.Second, renewals: -1,
	}, {
		host: "deploy-3", about: "is killed: its lock expires, and unlocker removes it",
		name: deployAPI, owner: "deploy", purpose: "deploy api 2.7",
		alert: 3 * time.Second, unlock: 6 * time.Second, idle: 1500 * time.Millisecond,
	}, {
		host: "deploy-4", about: "waits for that lock and gets it",
		name: deployAPI, owner: "deploy", purpose: "deploy api 2.8",
		alert: 5 * time.Second, unlock: 10 * time.Second, renewals: -1,
	}, {
		host: "cache-5", about: "writes times in milliseconds: unlocker does not remove such a lock",
		name: warmup, owner: "cache", purpose: "warm up the cache", milliseconds: true,
		alert: 3 * time.Second, unlock: 6 * time.Second, idle: time.Hour,
	}, {
		host: "backup-6", about: "has a slow clock but renews: unlocker does not remove its lock",
		name: nightly, owner: "backup", purpose: "back up the databases", slowBy: time.Hour,
		alert: 5 * time.Second, unlock: 8 * time.Second, renewals: -1,
	}}
}

func (w *worker) run(ctx context.Context) error {
	if err := pause(ctx, w.starts); err != nil {
		return err
	}
	if err := w.lock(ctx); err != nil {
		return err
	}
	if err := pause(ctx, w.idle); err != nil {
		return err
	}
	if w.renewals == 0 {
		w.say(terminal.Red, "is killed (its goroutine ends); its lock stays in etcd")
		return nil
	}
	for i := 0; i != w.renewals; i++ {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if err := w.renew(ctx); err != nil {
			return err
		}
		if i == 0 {
			w.say(terminal.Plain, "renewed %s, as it does every second from now on", w.name)
		}
	}
	if err := w.release(ctx); err != nil {
		return err
	}
	w.say(terminal.Green, "is done: unlocked %s after %d renewals", w.name, w.renewals)
	return nil
}

func (w *worker) say(colour terminal.Color, format string, args ...any) {
	w.report.mu.Lock()
	defer w.report.mu.Unlock()
	w.report.say(w.host, colour, format, args...)
}

// lock takes the lock as docs/protocol.md says, and waits while another worker holds it.
func (w *worker) lock(ctx context.Context) error {
	w.uuid = strings.ToLower(rand.Text())
	_, file, line, _ := runtime.Caller(1)
	for {
		resp, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(w.key("uuid")), "=", 0)).Then(
			w.put("uuid", w.uuid),
			w.put("hostname", w.host),
			w.put("owner", w.owner),
			w.put("purpose", w.purpose),
			w.put("pid", strconv.Itoa(os.Getpid())),
			w.put("backtrace", fmt.Sprintf("%s:%d", filepath.Base(file), line)),
			w.put("locked_at", w.timeIn(0)),
			w.put("alert_at", w.timeIn(w.alert)),
			w.put("auto_unlock_at", w.timeIn(w.unlock)),
		).Commit()
		if err != nil {
			return fmt.Errorf("lock %s: %w", w.name, err)
		}
		if resp.Succeeded {
			w.say(terminal.Plain, "locked %s: alert in %v, expires in %v, token %d", w.name, w.alert, w.unlock, resp.Header.Revision)
			return nil
		}
		w.say(terminal.Plain, "waits for %s: watches for the deletion of its uuid", w.name)
		// It answers with a delete, or is closed: in both cases, try again.
		<-w.client.Watch(clientv3.WithRequireLeader(ctx), w.key("uuid"), clientv3.WithRev(resp.Header.Revision), clientv3.WithFilterPut())
	}
}

func (w *worker) renew(ctx context.Context) error {
	return w.ifHeld(ctx,
		w.put("alert_at", w.timeIn(w.alert)),
		w.put("auto_unlock_at", w.timeIn(w.unlock)),
		w.put("alive_at", w.timeIn(0)),
	)
}

// release deletes the lock's keys one by one: a prefix would take in other locks
// whose names begin with this one.
func (w *worker) release(ctx context.Context) error {
	var ops []clientv3.Op
	for _, field := range strings.Fields("uuid hostname owner purpose pid backtrace locked_at alert_at auto_unlock_at alive_at") {
		ops = append(ops, clientv3.OpDelete(w.key(field)))
	}
	return w.ifHeld(ctx, ops...)
}

func (w *worker) ifHeld(ctx context.Context, ops ...clientv3.Op) error {
	resp, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(w.key("uuid")), "=", w.uuid)).Then(ops...).Commit()
	if err == nil && !resp.Succeeded {
		w.say(terminal.Red, "no longer holds %s, and stops", w.name)
		err = errLost
	}
	if err != nil {
		return fmt.Errorf("renew or unlock %s: %w", w.name, err)
	}
	return nil
}

func (w *worker) key(field string) string { return prefix + w.name + "/" + field }

func (w *worker) put(field, value string) clientv3.Op { return clientv3.OpPut(w.key(field), value) }

// timeIn is a time from now by the worker's own clock: decimal seconds since the epoch,
// as the protocol wants it, or milliseconds, the usual mistake.
func (w *worker) timeIn(d time.Duration) string {
	t := time.Now().Add(d - w.slowBy).UnixMilli()
	if w.milliseconds {
		return strconv.FormatInt(t, 10)
	}
	return fmt.Sprintf("%d.%03d", t/1000, t%1000)
}
