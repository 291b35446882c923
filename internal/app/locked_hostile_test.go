package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// hostileNames are names of locks that could harm terminals, logs, pages, scrapes, shells
// and paths. All of them are valid in the protocol.
func hostileNames() []string {
	return []string{
		"\x1b[2J\x1b]0;owned\x07", "<script>alert(1)</script>", "a\nlock removed", "a\r\n{\"level\":\"ERROR\"}", `"}{lock="x"} 1`,
		"\u202egnp.exe", "\u2028\u2029", "\ufeff", "\x00", " ", "uuid", "a/uuid", "a/uuid/uuid", ".", "..", "../../etc/passwd", "%2f%00",
		"$(reboot)", "{{.}}", "a!", "a0", "locks?after=x#y", "*", "**", "[", "'; drop table locks", "-rf", "=cmd|' /C calc'!A0",
		strings.Repeat("n", 100<<10), strings.Repeat("d/", 20<<10) + "d", strings.Repeat("\U0001F512", 5000),
	}
}

// invalidKeys are keys that belong to no lock. They must stay.
func invalidKeys() []string {
	return []string{"", "/", "//", "a//b/uuid", "x", "\xff\xff/uuid", "\xff", "/uuid", "a/\xff/uuid", "a/"}
}

// hostile is a lock with such a name and with hostile fields.
func hostile(name string, due time.Time) []clientv3.Op {
	claim := "\xc0\xaf\n\"}\x1b[31m<b>" + name
	var ops []clientv3.Op
	for _, kv := range [][2]string{
		{"uuid", "u"}, {"hostname", claim}, {"owner", claim}, {"purpose", claim}, {"backtrace", claim}, {"pid", claim},
		{"locked_at", etcdtest.Stamp(time.Now())}, {"alert_at", etcdtest.Stamp(time.Now())}, {"auto_unlock_at", etcdtest.Stamp(due)},
		{"\x1b[31m\nfield\xff", "\xff\xfe\x00"},
	} {
		ops = append(ops, clientv3.OpPut(prefix+name+"/"+kv[0], kv[1]))
	}
	return ops
}

// The tests of this file keep a processor busy: they are not parallel.

// Each goes when it is due, what is not a lock stays, and the scrape (which is parsed), the
// log (which is decoded) and the probes stay what they are.
func TestHostileLocks(t *testing.T) {
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), resyncing)
	d.awaitReaping()
	for _, key := range invalidKeys() {
		e.Put(clientv3.OpPut(prefix+key, "v"))
	}
	for _, name := range hostileNames() {
		e.Put(hostile(name, time.Now().Add(time.Hour))...)
	}
	all := float64(len(hostileNames()))
	d.awaitMetric(all, "unlocker_locks", "state", "overdue")
	require.Equal(t, all, d.metric("unlocker_lock_info")+d.metric("unlocker_lock_series_omitted"))
	_, body := d.get("/metrics")
	require.Less(t, len(body), 256<<10)

	for _, name := range hostileNames() {
		now := etcdtest.Stamp(time.Now())
		e.Set(name, "alive_at", now, "auto_unlock_at", now)
	}
	d.awaitMetric(all, "unlocker_forced_unlocks_total")
	d.awaitMetric(float64(len(invalidKeys())), "unlocker_locks")
	require.Len(t, e.Keys(""), len(invalidKeys()))
	require.EqualValues(t, len(invalidKeys()), d.metric("unlocker_locks", "state", "malformed"))
	d.requireNoFailures()
	require.Zero(t, d.metric("unlocker_resync_drift_total"))
	require.Empty(t, d.warnings())
	status, _ := d.get("/readyz")
	require.Equal(t, http.StatusOK, status)
	require.Less(t, d.longestLine(), 64<<10)
}

// longestLine returns the size of the longest line of the log.
func (d *daemon) longestLine() (longest int) {
	for line := range strings.Lines(d.log.String()) {
		longest = max(longest, len(line))
	}
	return longest
}

// Locks with the largest values that etcd accepts, and with many fields, are removed. The
// lines of the log stay within their limit.
func TestHostileSizes(t *testing.T) {
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), resyncing)
	d.awaitReaping()
	big, later := strings.Repeat("\x01", 1400<<10), time.Now().Add(time.Hour)
	names := []string{"wide"}
	for i := range 3 {
		name := fmt.Sprintf("large%d", i)
		names = append(names, name)
		e.Put(e.Lock(name, time.Now(), later)...)
		for _, field := range []string{"hostname", "owner", "purpose", "backtrace", "x", "y", "z"} {
			e.Put(clientv3.OpPut(prefix+name+"/"+field, big))
		}
	}
	e.Put(e.Lock("wide", time.Now(), later)...)
	for i := range 50 {
		e.Put(clientv3.OpPut(fmt.Sprintf("%swide/%d%s", prefix, i, big[:600]), big[:4<<10]))
	}
	for _, name := range names {
		now := etcdtest.Stamp(time.Now())
		e.Set(name, "alive_at", now, "auto_unlock_at", now)
	}
	awaitKeys(t, e, 0, "")
	d.awaitMetric(4, "unlocker_forced_unlocks_total")
	require.Empty(t, d.warnings())
	require.Less(t, d.longestLine(), 600<<10)
	t.Logf("the longest line has %d KiB", d.longestLine()>>10)
}
