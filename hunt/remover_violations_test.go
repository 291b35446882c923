//go:build hunt

package hunt

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// The checks of what a daemon knew find the violations that they must find.
func TestChecksOfTheRemover(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	outage := []span{{at(10), at(15)}}
	for name, c := range map[string]struct {
		announced, ended, deadline float64
		outages, cut, stops        []span
		ahead                      time.Duration
		other                      bool // another daemon leads
		want                       string
	}{
		"in time":                                {announced: 9, ended: 9.1, deadline: 8},
		"right after the start":                  {announced: 2, ended: 2.5, deadline: 1, want: "S3"},
		"within the settle after an outage":      {announced: 16, ended: 16.1, deadline: 12, outages: outage, want: "S3"},
		"within the settle after a cut":          {announced: 16, ended: 16.1, deadline: 12, cut: outage, want: "S3"},
		"after the settle":                       {announced: 18, ended: 18.1, deadline: 12, outages: outage},
		"within the settle, but sent before":     {announced: 10.5, ended: 16, deadline: 9, outages: outage},
		"within the settle, but was suspended":   {announced: 16, ended: 16.1, deadline: 12, outages: outage, stops: []span{{at(9), at(14)}}},
		"sent while a probe is overdue":          {announced: 11.7, ended: 12, deadline: 9, outages: []span{{at(10), at(13)}}, want: "S3"},
		"sent before a probe is overdue":         {announced: 11, ended: 13.1, deadline: 9, outages: []span{{at(10), at(13)}}},
		"before the grace":                       {announced: 9, ended: 9.1, deadline: 8.5, want: "S6"},
		"before the grace, by a fast clock":      {announced: 9, ended: 9.1, deadline: 12, ahead: 10 * time.Second},
		"by another than the leader":             {announced: 9, ended: 9.1, deadline: 7.5, other: true, want: "S6"},
		"by another than the leader, in time":    {announced: 9, ended: 9.1, deadline: 7, other: true},
		"by another, which may think it leads":   {announced: 9, ended: 9.1, deadline: 7.5, other: true, stops: []span{{at(5), at(7)}}},
		"an outage that was too short to notice": {announced: 13, ended: 13.1, deadline: 11, outages: []span{{at(10), at(12)}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{slot: &slot{group: &group{cut: c.cut}, clock: &clock{steps: []step{{ahead: c.ahead}}}}, started: start, stops: c.stops}
			d.cmd = &exec.Cmd{Process: &os.Process{Pid: 7}}
			w := &world{outages: c.outages, replay: &replay{}, began: start}
			w.replay.election.reigns = []reign{{identity: "host_7", from: 1}}
			if c.other {
				w.replay.election.reigns[0].identity = "host_77"
			}
			n := &lifetime{ended: at(c.ended), end: 5, autoUnlock: float64(at(c.deadline).UnixMicro()) / 1e6}
			w.checkRemover(n, d, &announcement{"a", "u", verdict.Verdict{}, span{at(c.announced), at(c.announced)}})
			if c.want == "" {
				require.Empty(t, w.violations)
				return
			}
			require.Len(t, w.violations, 1)
			require.Contains(t, w.violations[0], c.want)
		})
	}
}

// The clock of a daemon is the one that was set.
func TestClockOfADaemon(t *testing.T) {
	start := time.Now()
	d := &daemon{slot: &slot{clock: &clock{steps: []step{{}, {start, time.Hour}}}}}
	for ahead, want := range map[time.Duration]int{0: 1, time.Hour - time.Second: 0, 2 * time.Hour: 1} {
		w, at := &world{}, start.Add(time.Minute)
		w.checkClock(d, &announcement{verdict: verdict.Verdict{Inputs: verdict.Inputs{Now: at.Add(ahead)}}, span: span{at, at}})
		require.Len(t, w.violations, want, ahead)
	}
}

// A holder that lives keeps its lock.
func TestLivingHolder(t *testing.T) {
	start := time.Now()
	for ended, want := range map[time.Duration]int{900 * time.Millisecond: 1, 1100 * time.Millisecond: 0} {
		w := &world{began: start}
		l := &acquisition{holder: holderWith(0), span: 4 * time.Second, signed: start, token: 3}
		l.group = &group{}
		w.checkLiving(&lifetime{ended: start.Add(ended), token: 3}, l)
		require.Len(t, w.violations, want)
		w.violations = nil
		w.checkLiving(&lifetime{ended: start.Add(ended), token: 2}, l)
		l.group.broken = []span{{start, start.Add(time.Second)}}
		w.checkLiving(&lifetime{ended: start.Add(ended), token: 3}, l)
		require.Empty(t, w.violations)
	}
}

// The daemon with the oldest key leads.
func TestElection(t *testing.T) {
	start := time.Now()
	var e election
	event := func(rev int64, what mvccpb.Event_EventType, key, identity string) {
		kv := &mvccpb.KeyValue{Key: []byte(electionPrefix + key), Value: []byte(identity), ModRevision: rev, CreateRevision: rev}
		e.revised(rev, &clientv3.Event{Type: what, Kv: kv}, start)
	}
	event(3, mvccpb.PUT, "a", "host_7")
	event(4, mvccpb.PUT, "b", "host_8")
	event(5, mvccpb.DELETE, "a", "")
	require.False(t, e.led(7, 2, start))
	require.True(t, e.led(7, 4, start))
	require.False(t, e.led(8, 4, start))
	require.False(t, e.led(7, 6, start))
	require.True(t, e.led(7, 6, start.Add(-time.Second)), "it may not know yet")
	require.True(t, e.led(8, 6, start))
	event(7, mvccpb.DELETE, "b", "")
	require.False(t, e.led(8, 8, start))
}

// The journal has what the daemon logs.
func TestJournal(t *testing.T) {
	from, to := io.Pipe()
	j := newJournal(&clock{steps: []step{{ahead: time.Hour}}})
	go func() {
		log := slog.New(slog.NewJSONHandler(to, nil))
		v := verdict.Verdict{Inputs: verdict.Inputs{Now: time.Unix(3600, 0), Token: 3, Revision: 4, Measured: true, Offset: time.Second}, Reason: verdict.BySlow}
		log.Info(api.LogStarted, "ops", "127.0.0.1:1")
		for _, name := range []string{"a", "b", "c"} {
			log.Info(api.LogRemoving, "lock", name, "verdict", v, slog.Group("record", "uuid", "u-"+name))
		}
		log.Info(api.LogRemoving, "lock", "a", "verdict", v, slog.Group("record", "uuid", "another"))
		log.Info(api.LogWithdrawn, "lock", "a", "uuid", "another")
		log.Info(api.LogRemoved, "lock", "a", "uuid", "u-a", "revision", 9)
		log.Info(api.LogRemoving, "lock", "b", "verdict", v, slog.Group("record", "uuid", "u-b"))
		log.Info(api.LogAmbiguous, "lock", "b", "uuid", "u-b", "revision", 0)
		log.Warn(api.LogHoldBegins, "hold", "starting")
		_, _ = io.WriteString(to, "panic: no JSON\n")
		_ = to.Close()
	}()
	j.read(from)
	require.Equal(t, "127.0.0.1:1", j.listener())
	require.Equal(t, "panic: no JSON\n", j.tail())
	require.Len(t, j.announce, 5)
	require.Equal(t, "u-a", j.announce[0].uuid)
	require.Equal(t, verdict.BySlow, j.announce[0].verdict.Reason)
	require.Equal(t, time.Second, j.announce[0].verdict.Offset)
	require.True(t, time.Unix(0, 0).Equal(j.announce[0].from), "by the true clock")
	require.Equal(t, []outcome{{j.announce[0], "u-a", 9, api.LogRemoved}}, j.removals())
	require.ElementsMatch(t, []*announcement{j.announce[2], j.announce[4]}, j.ambiguous(), "no answer, and no outcome")
	require.Equal(t, []holding{{"b", "u-b"}}, j.twice)
	require.Equal(t, 1, j.holds[0].n)
}
