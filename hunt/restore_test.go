//go:build hunt

package hunt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// roundTime is the share of one round in the duration of the hunt. A round takes about four
// times as long, and six run at a time.
const roundTime = 7 * time.Second

// Each round restores an etcd of its own from a backup while locks are held, taken and
// released, and while daemons watch. HUNT_SEED fixes what is done. A single round can be
// repeated by -run TestRestores/NUMBER.
func TestRestores(t *testing.T) {
	length, seed := envDuration(t, "HUNT_TIME", longTime), envSeed(t)
	t.Logf("HUNT_SEED=%d HUNT_TIME=%s", seed, length)
	for i := range max(1, int(length/roundTime)) {
		t.Run(fmt.Sprintf("%03d", i), func(t *testing.T) {
			t.Parallel()
			r := newRound(t, rand.New(rand.NewPCG(seed, uint64(i))).Uint64(), i)
			r.run()
			r.report()
		})
	}
}

// restoration is a way to restore etcd.
type restoration string

const (
	rollback    restoration = "rolled back in place"
	writtenPast restoration = "rolled back in place and written past what the daemons saw"
	asNew       restoration = "restored as a new cluster"
	bump        restoration = "restored with a bumped revision, older ones marked as compacted"
	undo        restoration = "set back to what there was before the first restore"
)

// plan is what a round does.
type plan struct {
	restorations []restoration
	// few is set if so few holders renew that a listing may show no lock older than before.
	few bool
	// life is the time from the backup to the first restore.
	life time.Duration
	// cut is set if the daemons lose their connections before the restore, and restart if
	// one of them starts again after it.
	cut, restart bool
}

func draw(r *rand.Rand, i int) plan {
	firsts := []restoration{rollback, writtenPast, asNew, bump}
	p := plan{restorations: []restoration{firsts[i%len(firsts)]}, few: i/len(firsts)%2 == 1, cut: r.IntN(2) == 0, restart: r.IntN(4) == 0}
	if r.IntN(4) == 0 {
		seconds := slices.Concat(firsts, []restoration{undo, undo})
		p.restorations = append(p.restorations, seconds[r.IntN(len(seconds))])
	}
	p.life = between(r, 200*time.Millisecond, 5*time.Second)
	if p.few {
		p.life = between(r, 400*time.Millisecond, 2*time.Second)
	}
	p.cut = p.cut || slices.Contains(p.restorations, writtenPast)
	return p
}

// round is one etcd with its holders and daemons.
type round struct {
	*world
	plan
	dice     *rand.Rand
	dir      string
	peer     string // the URL of the member for its peers
	backup   backup
	etcd     *etcdtest.Etcd
	eras     []*era
	replicas []*replica
	keepers  map[string]*keeper // by uuid
	killed   time.Time          // when etcd was last killed
	// quiet is when the last restore was over and the daemons were connected.
	quiet time.Time
}

func newRound(t *testing.T, seed uint64, i int) *round {
	t.Helper()
	r := &round{world: &world{t: t, seed: seed, registry: newRegistry()}, keepers: map[string]*keeper{}, dir: t.TempDir()}
	r.dice = r.rand(0)
	r.plan = draw(r.dice, i)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.holderCtx, r.stopHolders = context.WithCancel(r.ctx)
	r.etcd = etcdtest.Start(t, localetcd.Options{Dir: r.dir})
	t.Cleanup(r.end)
	members, err := r.etcd.Client.MemberList(r.ctx)
	require.NoError(t, err)
	r.peer = members.Members[0].PeerURLs[0]
	for range clientsPerGroup {
		r.direct = append(r.direct, r.etcd.Connect())
	}
	for range 2 {
		r.replicas = append(r.replicas, &replica{proxy: r.etcd.Proxy(0), fresh: true})
	}
	return r
}

// end stops everything. It may be called more than once.
func (r *round) end() {
	r.cancel()
	r.running.Wait()
	r.joined.Wait()
	for _, d := range r.replicas {
		r.stop(d)
	}
}

func (r *round) run() {
	r.beginEra(1, map[int]int64{})
	for _, d := range r.replicas {
		r.start(d)
	}
	short, stopShort := context.WithCancel(r.holderCtx)
	defer stopShort()
	r.employ(r.holderCtx, short)
	pause(r.ctx, between(r.dice, 2*time.Second, 4*time.Second))
	r.save()
	pause(r.ctx, r.life)
	for i, how := range r.restorations {
		if i > 0 {
			pause(r.ctx, between(r.dice, 300*time.Millisecond, 4*time.Second))
		}
		r.restore(how, i == len(r.restorations)-1)
	}
	pause(r.ctx, time.Second)
	stopShort()
	r.settle()
	r.checkShown()
	r.catchUp()
	r.end()
	r.checkRemovals()
}

// restore replaces the data of etcd, while the daemons are connected or not.
func (r *round) restore(how restoration, last bool) {
	if r.cut {
		for _, d := range r.replicas {
			if r.dice.IntN(2) == 0 {
				d.proxy.Cut()
			} else {
				d.proxy.Blackhole()
			}
		}
		pause(r.ctx, between(r.dice, 0, time.Second))
	}
	r.kill()
	pause(r.ctx, between(r.dice, 0, 2*time.Second))
	from, line := r.replaceData(how)
	e := r.revive(from, line)
	require.Equal(r.t, how == asNew, e.cluster != r.eras[0].cluster, "the hunt itself: the cluster id after %s", how)
	if how == writtenPast {
		r.writePast()
	}
	if r.restart && last {
		r.stop(r.replicas[0])
		r.start(r.replicas[0])
	}
	for _, d := range r.replicas {
		require.NoError(r.t, d.proxy.Heal())
	}
	r.quiet = time.Now()
}

// settle waits until every dead lock is gone and every daemon has noticed what it must.
func (r *round) settle() {
	for {
		pause(r.ctx, 200*time.Millisecond)
		waiting, late := r.unfinished()
		if len(waiting) == 0 {
			return
		}
		if len(late) > 0 {
			for _, v := range late {
				r.violate("%s", v)
			}
			return
		}
	}
}

func (r *round) report() {
	noticed := 0
	for _, d := range r.replicas {
		if d.regressedSince(r.eras[0].started) != nil {
			noticed++
		}
	}
	removed := 0
	for _, e := range r.eras {
		removed += len(e.removals())
	}
	r.t.Logf("%v, few: %v, cut: %v, restart: %v: %d locks, %d removed, %d of %d daemons had to notice, %d did", r.restorations, r.few, r.cut, r.restart,
		r.registry.locked(), removed, r.obliged(), len(r.replicas), noticed)
	for _, v := range r.violations {
		r.t.Error(v)
	}
}

func (r *round) dataDir() string { return filepath.Join(r.dir, "m0") }
