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

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// The checks of what a daemon knew find the violations that they must find.
func TestChecksOfTheRemover(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	outage := []span{{From: at(10), To: at(15)}}
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
		"within the settle, but was suspended":   {announced: 16, ended: 16.1, deadline: 12, outages: outage, stops: []span{{From: at(9), To: at(14)}}},
		"sent while a probe is overdue":          {announced: 11.7, ended: 12, deadline: 9, outages: []span{{From: at(10), To: at(13)}}, want: "S3"},
		"sent before a probe is overdue":         {announced: 11, ended: 13.1, deadline: 9, outages: []span{{From: at(10), To: at(13)}}},
		"before the grace":                       {announced: 9, ended: 9.1, deadline: 8.5, want: "S6"},
		"before the grace, by a fast clock":      {announced: 9, ended: 9.1, deadline: 12, ahead: 10 * time.Second},
		"by another than the leader":             {announced: 9, ended: 9.1, deadline: 7.5, other: true, want: "S6"},
		"by another than the leader, in time":    {announced: 9, ended: 9.1, deadline: 7, other: true},
		"by another, which may think it leads":   {announced: 9, ended: 9.1, deadline: 7.5, other: true, stops: []span{{From: at(5), To: at(7)}}},
		"an outage that was too short to notice": {announced: 13, ended: 13.1, deadline: 11, outages: []span{{From: at(10), To: at(12)}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{slot: &slot{group: &group{cut: c.cut}, clock: &clock{steps: []step{{ahead: c.ahead}}}}, started: start, stops: c.stops}
			d.cmd = &exec.Cmd{Process: &os.Process{Pid: 7}}
			w := &world{outages: c.outages, replay: &replay{}, began: start}
			w.replay.election.Reigns = []judges.Reign{{Identity: "host_7", From: 1}}
			if c.other {
				w.replay.election.Reigns[0].Identity = "host_77"
			}
			n := &lifetime{Lock: lockWith(at(c.deadline)), ended: at(c.ended), end: 5}
			w.checkRemover(n, d, &judges.Announcement{Lock: "a", UUID: "u", At: span{From: at(c.announced), To: at(c.announced)}})
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
		w.checkClock(d, &judges.Announcement{Verdict: verdict.Verdict{Inputs: verdict.Inputs{Now: at.Add(ahead)}}, At: span{From: at, To: at}})
		require.Len(t, w.violations, want, ahead)
	}
}

// A holder that lives keeps its lock.
func TestLivingHolder(t *testing.T) {
	start := time.Now()
	for name, c := range map[string]struct {
		ended  time.Duration
		token  int64
		broken []span
		want   int
	}{
		"within its interval": {ended: 900 * time.Millisecond, token: 3, want: 1},
		"after its interval":  {ended: 1100 * time.Millisecond, token: 3},
		"an earlier token":    {ended: 900 * time.Millisecond, token: 2},
		"without connections": {ended: 900 * time.Millisecond, token: 3, broken: []span{{From: start, To: start.Add(time.Second)}}},
	} {
		w := &world{began: start}
		l := &acquisition{holder: holderWith(0), span: 4 * time.Second, signed: start, token: 3}
		l.group = &group{broken: c.broken}
		n := &lifetime{Lock: lockWith(start), ended: start.Add(c.ended), token: c.token, deleted: 2}
		record := &judges.Announcement{UUID: "u", Deadline: etcdtest.Stamp(start), Verdict: verdict.Verdict{Inputs: verdict.Inputs{Revision: 3}}}
		logs{verdicts: map[verdictOn][]*judges.Announcement{{"a", c.token}: {record}}, ambiguous: map[string]int{"": 1}}.check(w, n, l)
		require.Len(t, w.violations, c.want, name)
	}
}

// The logs convict a removal of which they do not have what they must.
func TestChecksOfTheLogs(t *testing.T) {
	start := time.Now()
	record := func(revision int64) *judges.Announcement {
		return &judges.Announcement{UUID: "u", Deadline: etcdtest.Stamp(start), Verdict: verdict.Verdict{Inputs: verdict.Inputs{Revision: revision}}}
	}
	for name, c := range map[string]struct {
		records []*judges.Announcement
		deleted int
		logged  bool
		want    []string
	}{
		"all there":                 {[]*judges.Announcement{record(3)}, 2, true, nil},
		"no verdict":                {nil, 2, true, []string{"S4"}},
		"written since the verdict": {[]*judges.Announcement{record(2)}, 2, true, []string{"S1"}},
		"one of two verdicts":       {[]*judges.Announcement{record(2), record(3)}, 2, true, nil},
		"a key stays":               {[]*judges.Announcement{record(3)}, 1, true, []string{"S4"}},
		"no outcome":                {[]*judges.Announcement{record(3)}, 2, false, []string{"S7"}},
	} {
		w := &world{began: start}
		all := logs{verdicts: map[verdictOn][]*judges.Announcement{{"a", 3}: c.records}, ambiguous: map[string]int{}}
		if c.logged {
			all.ambiguous["u"] = 1
		}
		l := &acquisition{holder: holderWith(0), stopped: start}
		l.group = &group{}
		all.check(w, &lifetime{Lock: lockWith(start), uuid: "u", ended: start.Add(time.Second), token: 3, deleted: c.deleted}, l)
		var promises []string
		for _, v := range w.violations {
			promises = append(promises, v[:2])
		}
		require.Equal(t, c.want, promises, name)
	}
}

// The journal has what the daemon logs.
func TestJournal(t *testing.T) {
	from, to := io.Pipe()
	j := newJournal(&clock{steps: []step{{ahead: time.Hour}}})
	go func() {
		log := slog.New(slog.NewJSONHandler(to, nil))
		v := verdict.Verdict{Inputs: verdict.Inputs{Now: time.Unix(3600, 0), Token: 3, Revision: 4, Observation: verdict.Observation{Measured: true, Offset: time.Second}}, Reason: verdict.BySlow}
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
	require.Len(t, j.Announced, 5)
	require.Equal(t, "u-a", j.Announced[0].UUID)
	require.Equal(t, verdict.BySlow, j.Announced[0].Verdict.Reason)
	require.Equal(t, time.Second, j.Announced[0].Verdict.Offset)
	require.True(t, time.Unix(0, 0).Equal(j.Announced[0].At.From), "by the true clock")
	require.Equal(t, []judges.Outcome{{Announcement: j.Announced[0], UUID: "u-a", Revision: 9, Message: api.LogRemoved}}, j.Removals())
	require.ElementsMatch(t, []*judges.Announcement{j.Announced[2], j.Announced[4]}, j.Ambiguous(), "no answer, and no outcome")
	require.Equal(t, []string{"S7: the removal of b was announced again before the outcome"}, j.wrong)
	require.Equal(t, 1, j.holds[0].n)
}
