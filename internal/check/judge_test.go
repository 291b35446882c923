package check

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// answer is that of a daemon with twelve held locks; changes may follow.
func answer(changes ...func(*Answer)) Answer {
	a := Answer{URL: "http://a:9481", Status: api.Status{
		Version: "1.2.3", Identity: "a-0", Now: now, Prefix: "/mutexes/", Mode: "enforce", Ready: true, Leads: true, Leader: "a-0",
		Locks: map[string]int{held: 12, overdue: 0, expired: 0, undated: 0, malformed: 0, orphaned: 0},
		Etcd:  api.Etcd{Up: true, Revision: 100},
	}}
	for _, change := range changes {
		change(&a)
	}
	return a
}

func at(url string) func(*Answer) { return func(a *Answer) { a.URL = url } }

func failed(words string) func(*Answer) {
	return func(a *Answer) { *a = Answer{URL: a.URL, Err: errors.New(words)} }
}

func unready(a *Answer) { a.Status.Ready, a.Status.Etcd.Up = false, false }

func cutOff(a *Answer) {
	a.Status.Etcd.Up, a.Status.Etcd.Error = false, "etcdserver: no leader"
	a.Status.Holds = append(a.Status.Holds, api.Hold{Hold: "disconnected", Since: ago(time.Hour), Reason: "the watch is down"})
}

func hold(name string, since time.Duration) func(*Answer) {
	return func(a *Answer) {
		a.Status.Holds = append(a.Status.Holds, api.Hold{Hold: verdict.Hold(name), Since: ago(since), Reason: "because of " + name})
	}
}

func alarm(name string) func(*Answer) {
	return func(a *Answer) { a.Status.Etcd.Alarms = append(a.Status.Etcd.Alarms, name) }
}

func revision(n int64) func(*Answer) { return func(a *Answer) { a.Status.Etcd.Revision = n } }

func mode(m string) func(*Answer) { return func(a *Answer) { a.Status.Mode = m } }

// counted adds locks that are not in the page.
func counted(state string, n int) func(*Answer) {
	return func(a *Answer) { a.Status.Locks[state] += n }
}

// late adds a lock past its alert time.
func late(state, name string, since time.Duration) func(*Answer) {
	return func(a *Answer) {
		a.Status.Locks[state]++
		l := api.Lock{Name: name, State: state, Hostname: "worker-1", Owner: "billing", LockedAt: ago(since + time.Hour), AlertAt: ago(since),
			AutoUnlockAt: ago(since - time.Hour), Rhythm: &api.Rhythm{RenewedAt: ago(4 * time.Minute), Interval: 40, Missed: 5}}
		if state == expired {
			l.AutoUnlockAt, l.Rhythm = ago(since/2), nil
			l.Explanation = "is due; removals on hold since 11:59:00: because of alarm"
		}
		a.Locks = append(a.Locks, l)
	}
}

func forced(name string, trigger verdict.Trigger, since time.Duration, revision int64) func(*Answer) {
	return func(a *Answer) {
		a.Forced = append(a.Forced, api.Forced{At: ago(since), Name: name, Hostname: "worker-2", Trigger: trigger, Revision: revision})
	}
}

// only makes the answer one to the question for a lock.
func only(l *api.Lock) func(*Answer) { return func(a *Answer) { a.Lock = l } }

func ranged(t *testing.T, text string) Range {
	t.Helper()
	var r Range
	err := r.Set(text)
	require.NoError(t, err)
	return r
}

// byDefault are the rules of a command line without flags.
func byDefault(t *testing.T) Rules {
	return Rules{Warning: ranged(t, "0"), Undated: ranged(t, "0"), Forced: time.Hour, Hold: 5 * time.Minute}
}

func TestJudge(t *testing.T) {
	const b = "http://b:9481"
	for name, c := range map[string]struct {
		rules   func(*Rules)
		answers []Answer
		state   State
		text    string
	}{
		"fine":     {answers: []Answer{answer()}, text: "12 locks, none overdue"},
		"one lock": {answers: []Answer{answer(counted(held, -11))}, text: "1 lock, none overdue"},
		"overdue": {answers: []Answer{answer(late(overdue, "a/b", 3*time.Minute))}, state: Warning,
			text: "1 of 13 locks overdue: a/b (billing on worker-1, 3m00s)"},
		"by the holder's clock": {answers: []Answer{answer(late(overdue, "a", 3*time.Minute), func(a *Answer) { a.Locks[0].ClockOffset = -121 })},
			state: Warning, text: "1 of 13 locks overdue: a (billing on worker-1, 59s)"},
		"expired counts": {answers: []Answer{answer(late(expired, "a", 10*time.Second))}, state: Warning,
			text: "1 of 13 locks overdue: a (billing on worker-1, 10s)"},
		"the longest first, some by number": {answers: []Answer{answer(late(overdue, "a", 1*time.Minute), late(overdue, "b", 50*time.Hour),
			late(expired, "c", 3*time.Hour), late(overdue, "d", 2*time.Second), late(overdue, "e", 3*time.Second), late(overdue, "f", time.Second))},
			state: Warning, text: "6 of 18 locks overdue: b (billing on worker-1, 2d02h), c (billing on worker-1, 3h00m), a (billing on worker-1, 1m00s), " +
				"e (billing on worker-1, 3s), d (billing on worker-1, 2s) and 1 more"},
		"more than the page holds": {answers: []Answer{answer(late(overdue, "a", time.Minute), counted(overdue, 999))}, state: Warning,
			text: "1000 of 1012 locks overdue: a (billing on worker-1, 1m00s) and 999 more"},
		"within the range": {rules: func(r *Rules) { r.Warning = ranged(t, "1") },
			answers: []Answer{answer(late(overdue, "a", time.Minute))}, text: "1 of 13 locks overdue: a (billing on worker-1, 1m00s)"},
		"critical": {rules: func(r *Rules) { r.Critical = ranged(t, "1") },
			answers: []Answer{answer(counted(overdue, 1), counted(expired, 1))}, state: Critical, text: "2 of 14 locks overdue"},
		"too few": {rules: func(r *Rules) { r.Critical = ranged(t, "1:") }, answers: []Answer{answer()}, state: Critical, text: "12 locks, none overdue"},

		"undated": {answers: []Answer{answer(counted(undated, 1), counted(malformed, 2))}, state: Warning,
			text: "3 locks never removed automatically (1 undated, 2 malformed); 15 locks, none overdue"},
		"malformed by another client": {rules: func(r *Rules) { r.Undated = ranged(t, "2") }, answers: []Answer{answer(counted(malformed, 2))},
			text: "14 locks, none overdue; 2 locks never removed automatically (0 undated, 2 malformed)"},
		"orphans are not locks": {answers: []Answer{answer(counted(orphaned, 5))}, text: "12 locks, none overdue"},

		"unreachable": {answers: []Answer{answer(failed("does not answer: connection refused"))}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 does not answer: connection refused"},
		"all unreachable": {answers: []Answer{answer(failed("x")), answer(at(b), failed("y"))}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 x, http://b:9481 y"},
		"one unreachable": {answers: []Answer{answer(failed("x")), answer(at(b))}, state: Warning, text: "http://a:9481 x; 12 locks, none overdue"},
		"not ready": {answers: []Answer{answer(unready)}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 has not listed the locks yet"},
		"blind": {answers: []Answer{answer(cutOff)}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 cannot reach etcd (etcdserver: no leader)"},
		"one blind, one unreachable": {answers: []Answer{answer(cutOff), answer(at(b), failed("x"))}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 cannot reach etcd (etcdserver: no leader), http://b:9481 x"},
		"one blind": {answers: []Answer{answer(cutOff, counted(overdue, 7)), answer(at(b))}, state: Warning,
			text: "http://a:9481 cannot reach etcd (etcdserver: no leader); 12 locks, none overdue"},
		"the newest counts": {answers: []Answer{answer(counted(overdue, 7)), answer(at(b), revision(101))}, text: "12 locks, none overdue"},
		"the blind one is the newest": {answers: []Answer{answer(cutOff, revision(999)), answer(at(b), counted(overdue, 1))}, state: Warning,
			text: "1 of 13 locks overdue; http://a:9481 cannot reach etcd (etcdserver: no leader)"},
		"different deployments": {answers: []Answer{answer(), answer(at(b), func(a *Answer) { a.Status.Prefix = "/others/" })}, state: Unknown,
			text: "http://a:9481 and http://b:9481 watch different prefixes: check them separately"},
		"a failed one has no prefix": {answers: []Answer{answer(failed("x")), answer(at(b))}, state: Warning, text: "http://a:9481 x; 12 locks, none overdue"},

		"alarm": {answers: []Answer{answer(alarm("NOSPACE"), hold("alarm", time.Second)), answer(at(b), alarm("NOSPACE"))}, state: Critical,
			text: "etcd raised NOSPACE: no holder can renew its lock; 12 locks, none overdue"},
		"held for a moment": {answers: []Answer{answer(hold("starting", 3*time.Second))},
			text: "12 locks, none overdue; removals are on hold for 3s: starting (because of starting)"},
		"held at the limit": {answers: []Answer{answer(hold("storm", 5*time.Minute))},
			text: "12 locks, none overdue; removals are on hold for 5m00s: storm (because of storm)"},
		"held for long": {answers: []Answer{answer(hold("starting", time.Second), hold("storm", 301*time.Second))}, state: Warning,
			text: "removals are on hold for 5m01s: storm (because of storm); 12 locks, none overdue"},
		"holds do not matter": {rules: func(r *Rules) { r.Hold = 0 }, answers: []Answer{answer(hold("storm", 24*time.Hour))},
			text: "12 locks, none overdue; removals are on hold for 1d00h: storm (because of storm)"},
		"one of two is held":       {answers: []Answer{answer(hold("storm", time.Hour)), answer(at(b))}, text: "12 locks, none overdue"},
		"both held, one only just": {answers: []Answer{answer(hold("storm", time.Hour)), answer(at(b), hold("starting", time.Second))}, text: "12 locks, none overdue; removals are on hold for 1s: starting (because of starting)"},
		"one held, one unreachable": {answers: []Answer{answer(hold("storm", time.Hour)), answer(at(b), failed("x"))}, state: Warning,
			text: "http://b:9481 x; removals are on hold for 1h00m: storm (because of storm); 12 locks, none overdue"},
		"dry run was asked for": {answers: []Answer{answer(mode("dry-run"), hold(string(verdict.HoldDryRun), 24*time.Hour))}, text: "12 locks, none overdue; removals are disabled: mode dry-run"},
		"held in a dry run": {answers: []Answer{answer(mode("dry-run"), hold(string(verdict.HoldDryRun), 24*time.Hour), hold("storm", time.Hour))}, state: Warning,
			text: "removals are on hold for 1h00m: storm (because of storm); 12 locks, none overdue; removals are disabled: mode dry-run"},
		"off": {answers: []Answer{answer(mode("off"))}, text: "12 locks, none overdue; removals are disabled: mode off"},

		"forced": {answers: []Answer{answer(forced("a", "expiry", time.Minute, 7), forced("b", "expiry", 59*time.Minute, 8))}, state: Warning,
			text: "2 forced unlocks in the last 1h00m: a (worker-2, 1m00s ago), b (worker-2, 59m00s ago); 12 locks, none overdue"},
		"forced by both": {answers: []Answer{answer(forced("a", "expiry", time.Minute, 7)), answer(at(b), forced("b", "expiry", time.Second, 8), forced("a", "expiry", 2*time.Minute, 5))},
			state: Warning, text: "3 forced unlocks in the last 1h00m: b (worker-2, 1s ago), a (worker-2, 1m00s ago), a (worker-2, 2m00s ago); 12 locks, none overdue"},
		"one daemon by two names": {answers: []Answer{answer(forced("a", "expiry", time.Minute, 7)), answer(at(b), forced("a", "expiry", time.Minute, 7))},
			state: Warning, text: "1 forced unlock in the last 1h00m: a (worker-2, 1m00s ago); 12 locks, none overdue"},
		"forced long ago":        {answers: []Answer{answer(forced("a", "expiry", 61*time.Minute, 7))}, text: "12 locks, none overdue"},
		"manual":                 {answers: []Answer{answer(forced("a", "manual", time.Minute, 7))}, text: "12 locks, none overdue"},
		"by another":             {answers: []Answer{answer(forced("a", "", time.Minute, 7))}, text: "12 locks, none overdue"},
		"orphans have no holder": {answers: []Answer{answer(forced("a", "orphan", time.Minute, 7))}, text: "12 locks, none overdue"},
		"forced does not matter": {rules: func(r *Rules) { r.Forced = 0 }, answers: []Answer{answer(forced("a", "expiry", time.Minute, 7))},
			text: "12 locks, none overdue"},
		"forced by a blind one": {answers: []Answer{answer(cutOff, forced("a", "expiry", time.Minute, 7))}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 cannot reach etcd (etcdserver: no leader); 1 forced unlock in the last 1h00m: a (worker-2, 1m00s ago)"},
		"the worst first": {rules: func(r *Rules) { r.Critical = ranged(t, "0") },
			answers: []Answer{answer(counted(undated, 1), counted(overdue, 1)), answer(at(b), failed("x"))}, state: Critical,
			text: "1 of 14 locks overdue; 1 lock never removed automatically (1 undated, 0 malformed); http://b:9481 x"},
	} {
		t.Run(name, func(t *testing.T) {
			rules := byDefault(t)
			if c.rules != nil {
				c.rules(&rules)
			}
			r := Judge(rules, c.answers)
			require.Equal(t, c.text, r.Text)
			require.Equal(t, c.state.String(), r.State.String())
		})
	}
}

func TestJudgeOneLock(t *testing.T) {
	lock := func(state string, alert, unlock time.Duration) *api.Lock {
		l := &api.Lock{Name: "a", State: state, Hostname: "worker-1", LockedAt: ago(time.Hour)}
		if alert != 0 {
			l.AlertAt = ago(alert)
		}
		if unlock != 0 {
			l.AutoUnlockAt = ago(unlock)
		}
		return l
	}
	for name, c := range map[string]struct {
		answers []Answer
		state   State
		text    string
		data    string
	}{
		"not held": {answers: []Answer{answer(only(nil))}, text: "a is not held", data: "held=0;;;0 age=0s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"held": {answers: []Answer{answer(only(lock(held, -time.Minute, -time.Hour)))}, text: "a is held by worker-1 for 1h00m",
			data: "held=1;;;0 age=3600s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"overdue": {answers: []Answer{answer(only(lock(overdue, time.Minute, -time.Hour)))}, state: Warning,
			text: "a is overdue by 1m00s, held by worker-1 for 1h00m", data: "held=1;;;0 age=3600s;;;0 past_alert=60s;;;0 forced=0;0;;0"},
		"expired": {answers: []Answer{answer(only(lock(expired, time.Minute, 30*time.Second)))}, state: Critical,
			text: "a expired 30s ago and still exists, held by worker-1 for 1h00m", data: "held=1;;;0 age=3600s;;;0 past_alert=60s;;;0 forced=0;0;;0"},
		"expired without an alert time": {answers: []Answer{answer(only(lock(expired, 0, 30*time.Second)))}, state: Critical,
			text: "a expired 30s ago and still exists, held by worker-1 for 1h00m", data: "held=1;;;0 age=3600s;;;0 past_alert=30s;;;0 forced=0;0;;0"},
		"undated": {answers: []Answer{answer(only(lock(undated, 0, 0)))}, state: Warning,
			text: "a is undated and never removed automatically, held by worker-1 for 1h00m", data: "held=1;;;0 age=3600s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"malformed": {answers: []Answer{answer(only(lock(malformed, 0, 0)))}, state: Warning,
			text: "a is malformed and never removed automatically", data: "held=1;;;0 age=3600s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"orphaned": {answers: []Answer{answer(only(lock(orphaned, 0, 0)))}, text: "a is not held",
			data: "held=0;;;0 age=0s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"in a state of tomorrow": {answers: []Answer{answer(only(lock("quantum", 0, 0)))}, state: Unknown,
			text: "a is in a state that this version does not know: quantum", data: "held=1;;;0 age=3600s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"the others do not matter": {answers: []Answer{answer(only(nil), counted(overdue, 7), counted(undated, 7), alarm("NOSPACE"), hold("storm", time.Hour)),
			answer(failed("x"))}, text: "a is not held", data: "held=0;;;0 age=0s;;;0 past_alert=0s;;;0 forced=0;0;;0"},
		"forced": {answers: []Answer{answer(only(nil), forced("a", "expiry", time.Minute, 7), forced("b", "expiry", time.Minute, 8))}, state: Warning,
			text: "1 forced unlock in the last 1h00m: a (worker-2, 1m00s ago); a is not held", data: "held=0;;;0 age=0s;;;0 past_alert=0s;;;0 forced=1;0;;0"},
		"blind": {answers: []Answer{answer(only(nil), cutOff)}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 cannot reach etcd (etcdserver: no leader)", data: "forced=0;0;;0"},
		"not ready": {answers: []Answer{answer(only(nil), unready)}, state: Critical,
			text: "no daemon reports on the locks: http://a:9481 has not listed the locks yet", data: "forced=0;0;;0"},
		"no name for a lock": {answers: []Answer{{URL: "http://a:9481", Err: client.Refusal{Code: 400, Words: "an empty segment"}}}, state: Unknown,
			text: "no daemon reports on the locks: http://a:9481 answers 400 Bad Request: an empty segment"},
	} {
		t.Run(name, func(t *testing.T) {
			rules := byDefault(t)
			rules.Lock = "a"
			r := Judge(rules, c.answers)
			require.Equal(t, c.text, r.Text)
			require.Equal(t, c.state.String(), r.State.String())
			head, _, _ := strings.Cut(r.String(), "\n")
			_, data, _ := strings.Cut(head, " | ")
			require.Equal(t, c.data, data)
		})
	}
}
