//go:build hunt

package hunt

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// era is what etcd shows from one start until it is killed for a restore.
type era struct {
	// from is its revision at the start, line the newest revision of each earlier era that
	// belongs to its history.
	from    int64
	line    map[int]int64
	cluster uint64
	base    map[string]*mvccpb.KeyValue // the locks at from, by key
	// killed is when etcd was killed before, starting and started are around its start.
	killed, starting, started time.Time

	stop context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	events []recorded
	seen   int64 // the revision of the last response
}

// recorded is an event, and when it was recorded, which is never before it happened.
type recorded struct {
	*clientv3.Event
	at time.Time
}

// backup is a file made by etcdutl, with its revision and the era that it belongs to.
type backup struct {
	path     string
	era      int
	revision int64
}

func (r *round) etcdutl() snapshot.Manager { return snapshot.NewV3(zap.NewNop()) }

func (r *round) now() *era { return r.eras[len(r.eras)-1] }

// save makes a backup without stopping etcd.
func (r *round) save() {
	r.backup = backup{path: filepath.Join(r.t.TempDir(), "backup.db"), era: len(r.eras) - 1}
	_, err := r.etcdutl().Save(r.ctx, clientv3.Config{Endpoints: r.etcd.Endpoints(), Logger: zap.NewNop()}, r.backup.path)
	require.NoError(r.t, err)
	status, err := r.etcdutl().Status(r.backup.path)
	require.NoError(r.t, err)
	r.backup.revision = status.Revision
}

// kill notes what the daemons have seen and stops etcd.
func (r *round) kill() {
	for _, d := range r.replicas {
		r.note(d)
	}
	r.killed = time.Now()
	r.etcd.Kill(0)
	r.now().stop()
	<-r.now().done
	if len(r.eras) == 1 {
		require.NoError(r.t, r.etcd.Save())
	}
}

// replaceData replaces the data of the dead etcd. It returns the revision with which
// etcd will start, and the line of the new era.
func (r *round) replaceData(how restoration) (from int64, line map[int]int64) {
	if how == undo {
		require.NoError(r.t, r.etcd.Revert())
		first := r.eras[0]
		return first.seen, map[int]int64{0: first.seen}
	}
	c := snapshot.RestoreConfig{
		SnapshotPath: r.backup.path, Name: "m0", OutputDataDir: r.dataDir(), PeerURLs: []string{r.peer},
		InitialCluster: "m0=" + r.peer, InitialClusterToken: "localetcd-0", // as in localetcd, for the same cluster id
	}
	from = r.backup.revision
	switch how {
	case asNew:
		c.InitialClusterToken = "another"
	case bump:
		c.RevisionBump, c.MarkCompacted = 1_000_000, true
		from += int64(c.RevisionBump)
	}
	require.NoError(r.t, os.RemoveAll(r.dataDir()))
	require.NoError(r.t, r.etcdutl().Restore(c))
	line = maps.Clone(r.eras[r.backup.era].line)
	line[r.backup.era] = r.backup.revision
	return from, line
}

// revive starts etcd with the data that was restored, in a new era.
func (r *round) revive(from int64, line map[int]int64) *era {
	starting := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	require.NoError(r.t, r.etcd.Restart(ctx))
	e := r.beginEra(from, line)
	e.killed, e.starting = r.killed, starting
	return e
}

// beginEra begins to record.
func (r *round) beginEra(from int64, line map[int]int64) *era {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	resp, err := r.etcd.Client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
	require.NoError(r.t, err)
	e := &era{from: from, seen: from, line: line, cluster: resp.Header.ClusterId, base: map[string]*mvccpb.KeyValue{}, started: time.Now(), done: make(chan struct{})}
	for _, kv := range resp.Kvs {
		e.base[string(kv.Key)] = kv
	}
	recording, stop := context.WithCancel(r.ctx)
	e.stop = stop
	watch := r.etcd.Connect().Watch(recording, "\x00", clientv3.WithFromKey(), clientv3.WithRev(from+1), clientv3.WithPrevKV())
	r.joined.Go(func() {
		defer close(e.done)
		for resp := range watch {
			e.take(&resp, time.Now())
		}
	})
	r.eras = append(r.eras, e)
	return e
}

func (e *era) take(resp *clientv3.WatchResponse, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range resp.Events {
		e.events = append(e.events, recorded{ev, now})
		e.seen = ev.Kv.ModRevision
	}
}

// writePast writes elsewhere until etcd is ahead of what any daemon has seen.
func (r *round) writePast() {
	target := r.now().from + 300
	for _, d := range r.replicas {
		if past := d.knows.revision + 50; past < target+10_000 { // or the restore before bumped the revision
			target = max(target, past)
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	for revision := int64(0); revision < target; {
		resp, err := r.etcd.Client.Put(ctx, "/elsewhere", "x")
		require.NoError(r.t, err)
		revision = resp.Header.Revision
	}
}

// catchUp waits until everything that happened is recorded.
func (r *round) catchUp() {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	resp, err := r.etcd.Client.Put(ctx, "/elsewhere", "last")
	require.NoError(r.t, err)
	e := r.now()
	for ctx.Err() == nil && e.reached() < resp.Header.Revision {
		pause(ctx, 10*time.Millisecond)
	}
	require.NoError(r.t, ctx.Err())
}

func (e *era) reached() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

// until returns the events up to a revision.
func (e *era) until(revision int64) (all []recorded) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.events {
		if ev.Kv.ModRevision <= revision {
			all = append(all, ev)
		}
	}
	return all
}

// at returns the locks at a revision, by key.
func (e *era) at(revision int64) map[string]*mvccpb.KeyValue {
	state := maps.Clone(e.base)
	for _, ev := range e.until(revision) {
		apply(state, ev)
	}
	return state
}

func apply(state map[string]*mvccpb.KeyValue, ev recorded) {
	key := string(ev.Kv.Key)
	switch {
	case !strings.HasPrefix(key, prefix):
	case ev.Type == mvccpb.DELETE:
		delete(state, key)
	default:
		state[key] = ev.Kv
	}
}

// deletion is the deletion of a lock by a daemon.
type deletion struct {
	name, uuid string
	autoUnlock string
	revision   int64
	at         time.Time
}

// removals returns the deletions of uuids that were not made by their holders.
func (e *era) removals() (all []deletion) {
	events := e.until(e.reached())
	unlocked, deadlines := map[string]bool{}, map[string]string{} // by uuid, by revision and name
	at := func(ev recorded, name string) string { return fmt.Sprint(ev.Kv.ModRevision, " ", name) }
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if name, field, ok := splitKey(key); ok && field == "auto_unlock_at" && ev.Type == mvccpb.DELETE {
			deadlines[at(ev, name)] = string(ev.PrevKv.Value)
		} else if strings.HasPrefix(key, released) {
			unlocked[string(ev.Kv.Value)] = true
		}
	}
	for _, ev := range events {
		name, field, ok := splitKey(string(ev.Kv.Key))
		if !ok || field != "uuid" || ev.Type != mvccpb.DELETE || unlocked[string(ev.PrevKv.Value)] {
			continue
		}
		all = append(all, deletion{name: name, uuid: string(ev.PrevKv.Value), autoUnlock: deadlines[at(ev, name)], revision: ev.Kv.ModRevision, at: ev.at})
	}
	return all
}
