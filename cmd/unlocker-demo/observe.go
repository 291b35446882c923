package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// has reports whether a line of the metrics begins with the pattern. They come in the
// text format of Prometheus: a series a line, sorted by name and labels.
func has(metrics, pattern string) bool {
	return regexp.MustCompile("(?m)^" + pattern).MatchString(metrics)
}

// watchMetrics scrapes the daemon until ctx is done. It calls up once, when the
// daemon's watch on etcd is up: clocks are compared only by what it sees live.
func watchMetrics(ctx context.Context, r *report, url string, up func()) error {
	const scrapeInterval = 200 * time.Millisecond
	for started := false; ; {
		metrics, err := scrape(ctx, url)
		if err != nil {
			return err
		}
		if !started && has(metrics, "unlocker_etcd_up 1") {
			started = true
			up()
		}
		r.scraped(metrics)
		if err := pause(ctx, scrapeInterval); err != nil {
			return err
		}
	}
}

func scrape(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	req.Close = true // a connection kept alive would outlive the demo
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// scraped looks for what the story is about, and prints it when it is first seen.
func (r *report) scraped(metrics string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slow := `unlocker_host_clock_offset_seconds\{hostname="backup-6"\} -3[56]..`
	overdue := `unlocker_lock_info\{hostname="reports-2",lock="reports/monthly"`
	for _, m := range []struct{ pattern, seen, text string }{
		{overdue, monthlyOverdue, "reports/monthly is overdue: held by reports-2"},
		{`unlocker_lock_info\{hostname="deploy-3",lock="deploy/api"`, "api overdue", "deploy/api is overdue: held by deploy-3"},
		{slow + `(?s:.*)^unlocker_locks\{state="expired"\} 1`, "api expired", "deploy/api has expired; it is removed after a grace period"},
		{`unlocker_forced_unlock_timestamp_seconds\{hostname="deploy-3",lock="deploy/api"(?s:.*)` +
			`^unlocker_forced_unlocks_total\{trigger="expiry"\} 1`, apiCounted, "unlocker_forced_unlocks_total is 1"},
		{`unlocker_locks\{state="malformed"\} 1`, warmupMalformed, "cache/warmup is malformed: its deadline is unreadable"},
		{slow, nightlyMeasured, "the clock of backup-6 is an hour slow: taken into account"},
	} {
		if has(metrics, m.pattern) && r.first(m.seen) {
			r.say("metrics", terminal.Yellow, "%s", m.text)
		}
	}
	if has(metrics, `unlocker_lock_info\{hostname="billing-1"`) {
		r.wrong(invoices + " was overdue")
	}
	if has(metrics, slow) && has(metrics, `unlocker_lock_info\{hostname="backup-6"`) {
		r.wrong(nightly + " was overdue")
	}
	if r.seen[monthlyOverdue] && !has(metrics, overdue) && r.lock(monthly).renewals > 0 && r.first(monthlyRenewed) {
		r.say("metrics", terminal.Green, "%s is no longer overdue", monthly)
	}
	// Two seconds after any other lock would be removed.
	cache := r.lock(warmup)
	if len(cache.fields) == 9 && unixNow() > cache.expires/1000+grace.Seconds()+2 && r.first(warmupKept) {
		r.say("etcd", terminal.Green, "%s is kept: all its %d keys are still there", warmup, len(cache.fields))
	}
	backup := r.lock(nightly)
	if backup.renewals >= 8 && !has(metrics, "unlocker_reaper_hold.* 1") && r.first(nightlyKept) {
		r.say("etcd", terminal.Green, "%s is kept: it was renewed %d times", nightly, backup.renewals)
	}
}

func unixNow() float64 { return float64(time.Now().UnixMilli()) / 1000 }

// lockKeys is a lock as the watch on etcd has shown it.
type lockKeys struct {
	fields    map[string]string
	renewals  int
	expires   float64 // its auto_unlock_at
	deleted   int     // keys
	deletedIn int64   // the revision in which the first key was deleted
}

func watchLocks(ctx context.Context, client *clientv3.Client, r *report) error {
	for resp := range client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, e := range resp.Events {
			r.changed(e)
		}
	}
	return errors.New("the watch on etcd has ended")
}

// lock returns what is known of a lock, which may be nothing.
func (r *report) lock(name string) *lockKeys {
	if r.locks[name] == nil {
		r.locks[name] = &lockKeys{fields: map[string]string{}}
	}
	return r.locks[name]
}

func (r *report) changed(e *clientv3.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, value := strings.TrimPrefix(string(e.Kv.Key), prefix), string(e.Kv.Value)
	name, field := path.Dir(key), path.Base(key)
	l := r.lock(name)
	if e.Type == clientv3.EventTypeDelete {
		delete(l.fields, field)
		l.deleted++
		if l.deletedIn == 0 {
			l.deletedIn = e.Kv.ModRevision
		}
		if len(l.fields) == 0 {
			r.deleted(name, l, l.deletedIn == e.Kv.ModRevision)
			delete(r.locks, name)
		}
		return
	}
	l.fields[field] = value
	switch {
	case field == "alive_at":
		l.renewals++
	case field == "auto_unlock_at":
		l.expires, _ = strconv.ParseFloat(value, 64)
	case field == "hostname" && value == "deploy-4" && r.seen[apiRemoved]:
		r.first(apiPassedOn)
	}
}

// deleted handles that no key of a lock is left.
func (r *report) deleted(name string, l *lockKeys, atOnce bool) {
	r.say("etcd", terminal.Plain, "all %d keys of %s are deleted (revision %d)", l.deleted, name, l.deletedIn)
	byUnlocker := r.seen[api.LogRemoving+name]
	switch {
	case byUnlocker && unixNow() < l.expires+grace.Seconds():
		r.wrong(name + " was removed before it was due")
	case byUnlocker && slices.Contains([]string{invoices, monthly, warmup, nightly}, name):
		r.wrong(name + " was removed by unlocker")
	case byUnlocker && name == deployAPI && atOnce:
		r.first(apiRemoved)
	case name == invoices && atOnce && l.renewals >= 5:
		r.first(invoicesUnlocked)
	}
}
