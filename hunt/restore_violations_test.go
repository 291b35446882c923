//go:build hunt

package hunt

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// restored returns a round after a restore of revision 11. The lock a of the keeper 1-1 was
// renewed at the revision 12, which was taken back, if renewed is set.
func restored(how restoration, renewed bool) *round {
	start := time.Now().Add(-2500 * time.Millisecond) // etcd was killed a moment ago
	deadline := func(revision int64, at time.Time) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(prefix + "a/auto_unlock_at"), CreateRevision: 11, ModRevision: revision, Value: []byte(etcdtest.Stamp(at))}
	}
	uuid := &mvccpb.KeyValue{Key: []byte(prefix + "a/uuid"), CreateRevision: 11, ModRevision: 11, Value: []byte("1-1")}
	base := map[string]*mvccpb.KeyValue{string(uuid.Key): uuid, prefix + "a/auto_unlock_at": deadline(11, start.Add(4*time.Second))}
	first := &era{from: 11, base: base, cluster: 1, seen: 20}
	if renewed {
		first.events = []recorded{{&clientv3.Event{Kv: deadline(12, start.Add(6*time.Second))}, start.Add(time.Second)}}
	}
	next := &era{from: 11, line: map[int]int64{0: 11}, base: base, cluster: 1, killed: start.Add(2 * time.Second), starting: start.Add(3 * time.Second), started: start.Add(3 * time.Second)}
	r := &round{world: &world{registry: newRegistry()}, plan: plan{restorations: []restoration{how}}, eras: []*era{first, next}, keepers: map[string]*keeper{}}
	l := &acquisition{holder: &holder{}, name: "a", uuid: "1-1", span: 4 * time.Second}
	r.registry.add(l)
	r.keepers[l.uuid] = &keeper{acquisition: l}
	r.replicas = []*replica{{knows: knowledge{listed: 10, revision: 20}}}
	return r
}

func TestRestoresThatMustBeNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		how     restoration
		renewed bool
		edit    func(*round)
		want    bool
	}{
		"a renewal taken back":          {how: rollback, renewed: true, want: true},
		"nothing taken back":            {how: rollback},
		"taken back before it was seen": {how: rollback, renewed: true, edit: func(r *round) { r.replicas[0].knows.revision = 11 }},
		"another daemon since":          {how: rollback, renewed: true, edit: func(r *round) { r.replicas[0].fresh = true }},
		"another cluster id":            {how: asNew, edit: func(r *round) { r.now().cluster = 2 }, want: true},
		"an older deadline":             {how: bump, renewed: true, want: true},
		"the deadline that was seen":    {how: bump},
		"the same again":                {how: rollback, renewed: true, edit: func(r *round) { r.now().events = r.eras[0].events }},
		"taken back, and the same revision again": {how: rollback, renewed: true, edit: func(r *round) {
			r.now().events = []recorded{{&clientv3.Event{Kv: &mvccpb.KeyValue{ModRevision: 12}}, time.Now()}}
		}, want: true},
		"an older deadline, listed when it was renewed": {how: bump, renewed: true, edit: func(r *round) {
			r.now().events, r.now().killed = r.eras[0].events, time.Time{}
			r.replicas[0].log.Logger().Info(api.LogListed, "revision", 12)
		}},
	} {
		r := restored(c.how, c.renewed)
		if c.edit != nil {
			c.edit(r)
		}
		require.Equal(t, c.want, r.tookBack(r.replicas[0]) != "", name)
	}
}

func TestRestoreChecksFindViolations(t *testing.T) {
	for name, c := range map[string]struct {
		at      time.Duration // of the deletion
		edit    func(*round)
		renewed bool
		want    int
	}{
		"of a living holder":                           {at: 20 * time.Second, want: 1},
		"of a dead holder":                             {at: 20 * time.Second, edit: die},
		"of a dead holder, early":                      {at: 4 * time.Second, edit: die, want: 1},
		"in time, the restore took nothing back":       {at: 5 * time.Second, edit: die},
		"in time, but the restore took a renewal back": {at: 5 * time.Second, edit: die, renewed: true, want: 1},
		"at once":                     {at: 3 * time.Second, edit: die, renewed: true, want: 3}, // before it is due, without settling, impatiently
		"patiently after the restore": {at: 8 * time.Second, edit: die, renewed: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := restored(rollback, c.renewed)
			r.t = t
			if c.edit != nil {
				c.edit(r)
			}
			start := r.now().starting.Add(-3 * time.Second)
			d := r.replicas[0]
			_, _ = fmt.Fprintf(&d.log, "{\"time\": %q, \"msg\": %q, \"hold\": \"regressed\"}\n", start.Add(2500*time.Millisecond).Format(time.RFC3339Nano), api.LogHoldBegins)
			d.log.Logger().Info(api.LogRemoved, "uuid", "1-1", "revision", 30)
			deadline := string(r.now().base[prefix+"a/auto_unlock_at"].Value)
			r.checkRemoval(r.now(), deletion{name: "a", uuid: "1-1", autoUnlock: deadline, revision: 30, at: start.Add(c.at)})
			require.Len(t, r.violations, c.want)
		})
	}
}

func die(r *round) { r.keepers["1-1"].stopped = r.now().starting.Add(-time.Hour) }
