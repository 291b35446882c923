//go:build hunt

package hunt

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// unfinished returns what must still happen, and of that what should have happened by now.
func (r *round) unfinished() (waiting, late []string) {
	add := func(deadline time.Time, format string, args ...any) {
		waiting = append(waiting, fmt.Sprintf(format, args...))
		if time.Now().After(deadline) {
			late = append(late, waiting[len(waiting)-1])
		}
	}
	for name, held := range r.held() {
		l := r.registry.acquisition(held.uuid)
		gone := r.gone(l)
		if gone.IsZero() {
			continue
		}
		since := gone
		if r.quiet.After(since) {
			since = r.quiet
		}
		down := r.quiet.Sub(r.eras[1].killed) + 2*time.Second // outages count for the holder
		add(since.Add(l.span+grace+roundSettle+standby+down+recovery), "S6: the lock %s (span %s) is still there %s after the restore, and %s after its holder stopped",
			name, l.span, time.Since(r.quiet), time.Since(gone))
	}
	for i, d := range r.replicas {
		if why := r.tookBack(d); why != "" && d.regressedSince(r.eras[d.knows.era+1].killed) == nil {
			add(r.quiet.Add(recovery), "S3: daemon %d has not noticed the restore after %s: %s", i, time.Since(r.quiet), why)
		}
	}
	return waiting, late
}

// obliged returns the number of daemons that had to notice the last restore.
func (r *round) obliged() (n int) {
	for _, d := range r.replicas {
		if r.tookBack(d) != "" {
			n++
		}
	}
	return n
}

// tookBack returns what the daemon had certainly seen that etcd does not show any more, or
// "".
func (r *round) tookBack(d *replica) string {
	if d.fresh || d.knows.revision == 0 {
		return ""
	}
	then, now := r.eras[d.knows.era], r.now()
	if then.cluster != now.cluster {
		return "another cluster id"
	}
	if r.restorations[len(r.restorations)-1] == bump {
		return r.showsOlder(d, then, now)
	}
	var newest *recorded
	for _, ev := range then.until(d.knows.revision) {
		if strings.HasPrefix(string(ev.Kv.Key), prefix) && ev.Kv.ModRevision > d.knows.listed && ev.Kv.ModRevision > now.line[d.knows.era] {
			newest = &ev
		}
	}
	if newest == nil || slices.ContainsFunc(now.until(newest.Kv.ModRevision), newest.equals) {
		return ""
	}
	return fmt.Sprintf("revision %d, %s %s, of %d that it had seen", newest.Kv.ModRevision, newest.Type, newest.Kv.Key, d.knows.revision)
}

// equals reports whether the other timeline shows the same at the same revision.
func (ev *recorded) equals(other recorded) bool {
	return ev.Kv.ModRevision == other.Kv.ModRevision && ev.Type == other.Type && bytes.Equal(ev.Kv.Key, other.Kv.Key) && bytes.Equal(ev.Kv.Value, other.Kv.Value)
}

// showsOlder returns a lock that the daemon's first listing of the present era shows with
// an older deadline than the daemon had seen, or "". It depends on the daemon when that
// is.
func (r *round) showsOlder(d *replica, then, now *era) string {
	touched := map[string]bool{}
	for _, ev := range now.until(d.listedSince(now)) {
		touched[string(ev.Kv.Key)] = true
	}
	for key, known := range then.at(d.knows.revision) {
		name, isDeadline := strings.CutSuffix(key, "/auto_unlock_at")
		uuid, before, shown := name+"/uuid", now.base[name+"/uuid"], now.base[key]
		if isDeadline && before != nil && shown != nil && !touched[key] && !touched[uuid] &&
			shown.ModRevision < known.ModRevision && !bytes.Equal(shown.Value, known.Value) {
			return fmt.Sprintf("%s of revision %d is %s again, of revision %d", key, known.ModRevision, shown.Value, shown.ModRevision)
		}
	}
	return ""
}

// listedSince returns the revision at which the daemon first listed an era, or 0.
func (d *replica) listedSince(e *era) int64 {
	for _, line := range d.since(e.killed, api.LogListed) {
		if revision := revisionOf(line); revision >= e.from {
			return revision
		}
	}
	return 0
}

// regressedSince returns the first line of the log that says that the daemon noticed a
// restore, or nil.
func (d *replica) regressedSince(t time.Time) map[string]any {
	for _, line := range d.since(t, api.LogHoldBegins) {
		if line["hold"] == "regressed" {
			return line
		}
	}
	return nil
}

// since returns the lines of a message after a time.
func (d *replica) since(t time.Time, message string) []map[string]any {
	return slices.DeleteFunc(d.log.Lines(message), func(line map[string]any) bool { return logged(line).Before(t) })
}

func logged(line map[string]any) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, line["time"].(string))
	return at
}

func revisionOf(line map[string]any) int64 {
	revision, _ := line["revision"].(float64)
	return int64(revision)
}

func (r *round) checkRemovals() {
	for _, e := range r.eras {
		for _, m := range e.removals() {
			r.checkRemoval(e, m)
		}
	}
}

func (r *round) checkRemoval(e *era, m deletion) {
	l := r.registry.acquisition(m.uuid)
	deadline, dated := judges.Timestamp(m.autoUnlock)
	if !dated {
		r.violate("S8: %s was removed without a deadline", m.name)
		return
	}
	removed := fmt.Sprintf("%s was removed at revision %d", m.name, m.revision)
	r.convict(removed, judges.Sending{Passes: deadline.Add(grace), Why: "its deadline and the grace"}, m)
	if k := r.keepers[m.uuid]; k != nil && (k.stopped.IsZero() || k.stopped.After(m.at)) {
		r.checkLiving(e, m, k)
	}
	for i, d := range r.replicas {
		if d.removed(m) {
			r.checkSettled(fmt.Sprintf("%s by daemon %d", removed, i), e, m, d, l)
		}
	}
}

// checkLiving is for a deletion while the holder renewed. It had done all that it had to if
// none of its requests failed while etcd was up.
func (r *round) checkLiving(e *era, m deletion, k *keeper) {
	words := fmt.Sprintf("%s (span %s, interval %s, retry %s) was removed at revision %d of the era %d, %s after its start, while its holder renewed: failed %v",
		m.name, k.span, k.interval, k.retry, m.revision, slices.Index(r.eras, e), m.at.Sub(e.started), k.failed)
	idle := slices.ContainsFunc(k.failed, func(s span) bool {
		return m.at.Sub(s.To) < 2*k.span && !slices.ContainsFunc(r.eras[1:], func(e *era) bool {
			return span{From: e.killed.Add(-requestTimeout), To: e.started.Add(requestTimeout)}.Overlap(s) > 0
		})
	})
	if idle {
		r.t.Log(words)
		return
	}
	r.violate("S3: %s", words)
}

// checkSettled checks that a daemon had given the holder the time to renew that a restore
// which it had to notice, or had noticed, demands.
func (r *round) checkSettled(removed string, e *era, m deletion, d *replica, l *acquisition) {
	var holds []judges.Hold
	for _, line := range d.since(time.Time{}, api.LogHoldBegins) {
		if line["hold"] == "regressed" {
			holds = append(holds, judges.Hold{Why: "it noticed the restore", In: span{From: logged(line), To: logged(line).Add(roundSettle)}, Acted: span{From: m.at, To: m.at}})
		}
	}
	r.convict(removed, judges.Sending{Holds: holds}, m)
	why := r.tookBack(d)
	if e != r.now() || why == "" {
		return
	}
	noticed := d.regressedSince(r.eras[d.knows.era+1].killed)
	switch {
	case noticed == nil, logged(noticed).Before(e.killed): // what was seen since an earlier restore is not known
		return
	case logged(noticed).After(m.at):
		// The watch of etcd is silent until it is as far as it was. Until then the verdicts are on what was there
		// before, and are guarded.
		r.t.Logf("%s, %s after the start of etcd and %s before it noticed that it took back %s", removed, m.at.Sub(e.started), logged(noticed).Sub(m.at), why)
		return
	}
	why = "its holder had to renew after the restore, which took back " + why
	r.convict(removed, judges.Sending{Outages: e.starting.Sub(e.killed), Renewable: e.starting.Add(l.span + grace), Why: why}, m)
}

// convict judges what is known of a removal.
func (r *round) convict(removed string, sent judges.Sending, m deletion) {
	sent.Logged, sent.Leads, sent.At = true, true, m.at
	for _, v := range sent.Judge(judges.Rules{}) {
		r.violate("%s: %s: %s", v.Promise, removed, v.Text)
	}
}

// removed reports whether the daemon logged the deletion.
func (d *replica) removed(m deletion) bool {
	return slices.ContainsFunc(d.log.Lines(api.LogRemoved), func(line map[string]any) bool {
		return line["uuid"] == m.uuid && revisionOf(line) == m.revision
	})
}

// shown is a lock as etcd has it or a daemon shows it.
type shown struct {
	uuid  string
	token int64
	keys  int
}

// held returns the locks in etcd.
func (r *round) held() map[string]shown {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	resp, err := r.etcd.Client.Get(ctx, prefix, clientv3.WithPrefix())
	require.NoError(r.t, err)
	all := map[string]shown{}
	for _, kv := range resp.Kvs {
		name, field, _ := splitKey(string(kv.Key))
		l := all[name]
		l.keys++
		if field == "uuid" {
			l.uuid, l.token = string(kv.Value), kv.CreateRevision
		}
		all[name] = l
	}
	return all
}

// checkShown checks that each daemon shows the locks that etcd has.
func (r *round) checkShown() {
	var want map[string]shown
	var got []map[string]shown
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); pause(r.ctx, 100*time.Millisecond) {
		want, got = r.held(), r.shownByDaemons()
		if !slices.ContainsFunc(got, func(m map[string]shown) bool { return !maps.Equal(m, want) }) {
			return
		}
	}
	r.violate("the daemons show %v, etcd has %v", got, want)
}

func (r *round) shownByDaemons() []map[string]shown {
	var urls []string
	for _, d := range r.replicas {
		urls = append(urls, "http://"+d.app.WebAddr())
	}
	daemons, err := client.New(client.Options{URLs: urls, Timeout: 10 * time.Second})
	require.NoError(r.t, err)
	all := make([]map[string]shown, len(urls))
	daemons.Each(r.ctx, func(ctx context.Context, i int, d client.Daemon) {
		page, err := d.Locks(ctx, api.Query{States: api.States(), Limit: 1000})
		if err != nil {
			return // nil is no map of locks
		}
		all[i] = map[string]shown{}
		for _, l := range page.Locks {
			all[i][l.Name] = shown{l.UUID, l.Token, l.Keys}
		}
	})
	return all
}
