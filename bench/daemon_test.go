// Package bench contains the measurements of docs/performance.md. They run the daemon
// against an embedded etcd that syncs to disk, and package mutex against one in a process of
// its own. Absolute figures depend on the machine, so most of them are also reported as a
// ratio to another one of the same run. Those of package mutex need redis-server.
//
//	make bench-big
package bench

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const prefix = "/mutexes/"

// newEtcd starts one member that syncs to disk.
func newEtcd(b *testing.B) *etcdtest.Etcd {
	c, err := localetcd.Start(b.Context(), localetcd.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, c.Close()) })
	client, err := c.Client()
	require.NoError(b, err)
	e := etcdtest.On(b, client)
	e.Cluster = c
	return e
}

// startDaemon starts a daemon without a storm delay, and waits until it has listed the locks
// and no hold is in force. The function that it returns stops the daemon.
func startDaemon(b *testing.B, cluster *etcdtest.Etcd, edit func(*config.Config)) (*app.App, func()) {
	c := config.Default()
	c.Etcd.Endpoints = cluster.Endpoints()
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", ""
	c.Reaper.Settle, c.Reaper.Storm.MinLocks = 500*time.Millisecond, 0
	if edit != nil {
		edit(&c)
	}
	a, err := app.New(c, slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	a.Start()
	require.Eventually(b, func() bool {
		s, err := a.Snapshot(b.Context())
		return err == nil && s.Scan.Connected && len(s.Holds) == 0
	}, time.Minute, 10*time.Millisecond)
	return a, func() { require.NoError(b, a.Stop(context.Background())) }
}

// name returns the name of a lock, which has 20 bytes.
func name(i int) string { return fmt.Sprintf("bench/lock-%09d", i) }

// lockOps returns the writes of the five keys of a lock.
func lockOps(name string, alert, unlock time.Time, opts ...clientv3.OpOption) []clientv3.Op {
	seconds := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
	i := 0
	for _, r := range name {
		i = i*31 + int(r)
	}
	var ops []clientv3.Op
	for _, kv := range [][2]string{
		{"alert_at", seconds(alert)},
		{"auto_unlock_at", seconds(unlock)},
		{"hostname", fmt.Sprintf("worker-%02d.example.org", i&15)},
		{"locked_at", seconds(time.Now())},
		{"uuid", fmt.Sprintf("%08x-0000-4000-8000-%012x", uint32(i), i&0xffffffffffff)},
	} {
		ops = append(ops, clientv3.OpPut(prefix+name+"/"+kv[0], kv[1], opts...))
	}
	return ops
}

// putLocks writes n locks, each with further fields, given as pairs of a name and a value.
func putLocks(e *etcdtest.Etcd, n int, alert, unlock time.Time, fields ...string) {
	for from := 0; from < n; from += 1000 {
		var ops []clientv3.Op
		for i := from; i < min(from+1000, n); i++ {
			ops = append(ops, lockOps(name(i), alert, unlock)...)
			for field := range slices.Chunk(fields, 2) {
				ops = append(ops, clientv3.OpPut(prefix+name(i)+"/"+field[0], field[1]))
			}
		}
		e.Put(ops...)
	}
}

// deletions watches the deletions of uuid keys. The function that it returns waits for n of
// them, and returns the times of the first and of the last.
func deletions(b *testing.B, client *clientv3.Client, n int) func() (first, last time.Time) {
	ctx, cancel := context.WithCancel(b.Context())
	events := client.Watch(ctx, prefix+"bench/", clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	<-events
	type times struct{ first, last time.Time }
	done := make(chan times, 1)
	go func() {
		defer cancel()
		var t times
		for r := range events {
			for _, ev := range r.Events {
				key := string(ev.Kv.Key)
				if ev.Type != mvccpb.Event_DELETE || key[len(key)-5:] != "/uuid" {
					continue
				}
				if t.first.IsZero() {
					t.first = time.Now()
				}
				if n--; n == 0 {
					t.last = time.Now()
					done <- t
					return
				}
			}
		}
	}()
	return func() (time.Time, time.Time) {
		t := <-done
		return t.first, t.last
	}
}

// measureClient locks and unlocks over a connection of its own until it is stopped. stop waits for
// the round that is under way, which may be the slowest, and returns the duration of each.
func measureClient(b *testing.B, client *clientv3.Client) (stop func() []time.Duration) {
	ctx, cancel := context.WithCancel(b.Context())
	took := make(chan []time.Duration, 1)
	go func() {
		var all []time.Duration
		for i := 0; i == 0 || ctx.Err() == nil; i++ {
			start := time.Now()
			if lockUnlock(b.Context(), client, "client/"+strconv.Itoa(i)) == nil {
				all = append(all, time.Since(start))
			}
		}
		took <- all
	}()
	return func() []time.Duration {
		cancel()
		return <-took
	}
}

// lockUnlock acquires a lock and unlocks it.
func lockUnlock(ctx context.Context, client *clientv3.Client, name string) error {
	uuid := prefix + name + "/uuid"
	now := time.Now()
	puts := lockOps(name, now.Add(time.Hour), now.Add(2*time.Hour))
	if _, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version(uuid), "=", 0)).Then(puts...).Commit(); err != nil {
		return err
	}
	var deletes []clientv3.Op
	for _, put := range puts {
		deletes = append(deletes, clientv3.OpDelete(string(put.KeyBytes())))
	}
	own := string(puts[len(puts)-1].ValueBytes())
	_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Value(uuid), "=", own)).Then(deletes...).Commit()
	return err
}

// quantile sorts d and returns its quantile q.
func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}
