package pause_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) { etcdtest.Main(m, shared.Close) }

// world is an etcd, and the pauses under a prefix of it.
type world struct {
	*etcdtest.Etcd
	*pause.Pauses
	t       *testing.T
	log     etcdtest.Log
	changes atomic.Int64
}

func start(t *testing.T, e *etcdtest.Etcd, client *clientv3.Client) *world {
	t.Helper()
	w := &world{Etcd: e, t: t}
	var err error
	w.Pauses, err = pause.New(pause.Options{
		FollowerOptions: etcd.FollowerOptions{
			Client: client, Prefix: e.Prefix, RequestTimeout: 2 * time.Second, Freshness: time.Second,
			Explain: func(err error) error { return err }, Logger: w.log.Logger(),
		},
		Changed: func(context.Context) { w.changes.Add(1) },
	})
	require.NoError(t, err)
	require.Equal(t, "pauses under "+e.Prefix+" not loaded yet", w.Unseen())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return w
}

func (w *world) await(condition func() bool) {
	w.t.Helper()
	etcdtest.Eventually(w.t, condition)
}

// pause writes a pause with a lease, which end revokes: etcd does the same when it expires.
func (w *world) pause(match, by string, lasts time.Duration) (end func()) {
	w.t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	value, err := pause.Value(api.Pause{Match: match, By: by, Reason: "why", Since: now, Until: now.Add(lasts)})
	require.NoError(w.t, err)
	lease, err := w.Client.Grant(w.t.Context(), 600)
	require.NoError(w.t, err)
	w.write(pause.Key(match), value, clientv3.WithLease(lease.ID))
	return func() {
		_, err := w.Client.Revoke(w.t.Context(), lease.ID)
		require.NoError(w.t, err)
	}
}

func (w *world) write(key, value string, options ...clientv3.OpOption) {
	w.t.Helper()
	_, err := w.Client.Put(w.t.Context(), w.Etcd.Prefix+key, value, options...)
	require.NoError(w.t, err)
}

func (w *world) remove(key string) {
	w.t.Helper()
	_, err := w.Client.Delete(w.t.Context(), w.Etcd.Prefix+key)
	require.NoError(w.t, err)
}

const clock = `(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d`

func TestAPauseOfAllEndsWithItsLease(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	w := start(t, e, e.Client)
	w.await(func() bool { return w.Unseen() == "" })
	require.True(t, w.Listed())
	require.Empty(t, w.All())
	end := w.pause("", "ada@laptop", -time.Hour)
	w.await(func() bool { return w.All() != "" })
	require.Regexp(t, "^paused until "+clock+" by ada@laptop: why$", w.All(), "it lasts while its key is there, whatever the clocks say")
	require.Zero(t, w.For("a"), "a hold keeps all locks")
	require.Len(t, w.InForce(), 1)
	end()
	w.await(func() bool { return w.All() == "" })
	require.Empty(t, w.InForce())
	w.await(func() bool { return w.changes.Load() > 0 && len(w.log.Lines(api.LogPauseEnds)) > 0 })
	for msg, wants := range map[string]map[string]any{
		api.LogPauseBegins: {"level": "INFO", "match": "", "by": "ada@laptop", "reason": "why"},
		api.LogPauseEnds:   {"level": "INFO", "match": "", "by": "ada@laptop"},
	} {
		lines := w.log.Lines(msg)
		require.Len(t, lines, 1, msg)
		for key, want := range wants {
			require.Equal(t, want, lines[0][key], key)
		}
	}
}

// A person who writes a pause with etcdctl may leave since out.
func TestAPauseWithoutABeginHasNoDuration(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	w := start(t, e, e.Client)
	w.write(pause.Key(""), `{"match": "", "by": "ada", "until": "2100-01-01T00:00:00Z"}`)
	w.await(func() bool { return w.All() != "" })
	w.remove(pause.Key(""))
	w.await(func() bool { return len(w.log.Lines(api.LogPauseEnds)) > 0 })
	require.NotContains(t, w.log.Lines(api.LogPauseEnds)[0], "lasted")
}

func TestPausesOfPatterns(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	w := start(t, e, e.Client)
	w.pause("deploy/*", "ada@laptop", time.Hour)
	w.pause("**/web", "bob@laptop", 2*time.Hour)
	w.await(func() bool { return len(w.InForce()) == 2 })
	require.Empty(t, w.All())
	require.Equal(t, `by ada@laptop for "deploy/*": why`, w.For("deploy/db").Words)
	require.Equal(t, `by bob@laptop for "**/web": why`, w.For("deploy/web").Words, "that which ends last")
	require.WithinDuration(t, time.Now().Add(2*time.Hour), w.For("deploy/web").Until, time.Minute)
	require.Equal(t, verdict.Pause{}, w.For("deploy/web/x"))
	require.True(t, w.Matches("web"))
	require.False(t, w.Matches("deploy"))

	w.pause("", "cyd@laptop", time.Hour)
	w.pause("deploy/*", "eve@laptop", 3*time.Hour)
	w.await(func() bool {
		return len(w.InForce()) == 3 && w.For("deploy/db").Words == `by eve@laptop for "deploy/*": why`
	})
	var by []string
	for _, r := range w.Records() {
		by = append(by, r.By)
	}
	require.Equal(t, []string{"cyd@laptop", "bob@laptop", "eve@laptop"}, by)
	w.remove("match/**/web")
	w.await(func() bool { return !w.Matches("web") })
}

// What nobody can read may be a pause of anything.
func TestABrokenRecordPausesAll(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	e.Put(clientv3.OpPut(e.Prefix+"match/a", "\x1b[2J"))
	w := start(t, e, e.Client)
	w.await(w.Listed)
	require.Equal(t, fmt.Sprintf(`the record %smatch/a is not a pause that can be read (invalid character '\x1b' looking for beginning of value), `+
		`so all locks are kept until it is deleted`, e.Prefix), w.All())
	require.Len(t, w.InForce(), 1)
	require.Empty(t, w.Records())
	lines := w.log.Lines(api.LogPauseBroken)
	require.Len(t, lines, 1)
	require.Equal(t, "WARN", lines[0]["level"])
	require.Equal(t, e.Prefix+"match/a", lines[0]["key"])
	w.pause("a", "ada@laptop", time.Hour)
	w.await(func() bool { return w.All() == "" && w.Matches("a") })
	w.write("match/a", "{}")
	w.await(func() bool { return w.All() != "" })
	require.False(t, w.Matches("a"))
	w.remove("match/a")
	w.await(func() bool { return w.All() == "" })
}

func TestTooManyRecordsPauseAll(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	var puts []clientv3.Op
	for i := range 1001 {
		match := fmt.Sprintf("m%04d", i)
		value, err := pause.Value(api.Pause{Match: match, Until: time.Now()})
		require.NoError(t, err)
		puts = append(puts, clientv3.OpPut(e.Prefix+pause.Key(match), value))
	}
	e.Put(puts...)
	w := start(t, e, e.Client)
	w.await(w.Listed)
	require.Equal(t, fmt.Sprintf("under %s are more than 1000 records, or one with a very long key, so all locks are kept", e.Prefix), w.All())
	w.remove("match/m0500")
	w.await(func() bool { return w.All() == "" && len(w.InForce()) == 1000 && w.Matches("m1000") })
}

// Without the connection the pauses are remembered, but not relied on.
func TestPausesNotSynced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		direct, err := cluster.Connect()
		require.NoError(t, err)
		link, err := cluster.Connect()
		require.NoError(t, err)
		w := start(t, etcdtest.On(t, direct.Client), link.Client)
		w.pause("", "ada@laptop", time.Hour)
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		pass(time.Second)
		require.Empty(t, w.Unseen())
		require.NotEmpty(t, w.All())
		link.Set(memetcd.Unreachable())
		pass(time.Second / 2)
		require.Empty(t, w.Unseen(), "less than the freshness")
		pass(time.Second / 2)
		require.Contains(t, w.Unseen(), "cannot load pauses under "+w.Etcd.Prefix+": ")
		require.NotEmpty(t, w.All())
		require.True(t, w.Listed())
		w.remove("all")
		link.Set(memetcd.Faults{})
		pass(10 * time.Second)
		require.Empty(t, w.Unseen())
		require.Empty(t, w.All())
	})
}

func TestOptions(t *testing.T) {
	_, err := pause.New(pause.Options{})
	require.ErrorContains(t, err, "Changed is required")
	_, err = pause.New(pause.Options{Changed: func(context.Context) {}})
	require.ErrorContains(t, err, "required")
}

func TestRecord(t *testing.T) {
	since := time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)
	for match, key := range map[string]string{"": "all", "deploy/**": "match/deploy/**", "all": "match/all"} {
		r := api.Pause{Match: match, By: "ada@laptop", Reason: "why", Since: since, Until: since.Add(time.Hour)}
		require.Equal(t, key, pause.Key(match))
		value, err := pause.Value(r)
		require.NoError(t, err)
		read, err := pause.Parse(key, []byte(value))
		require.NoError(t, err)
		require.Equal(t, r, read)
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	const until = `"until":"2026-11-21T20:00:00Z"`
	for value, c := range map[string]struct{ key, want string }{
		"":                                      {"all", "unexpected end"},
		"2h":                                    {"all", "invalid character"},
		"[]":                                    {"all", "cannot unmarshal array"},
		`{"match":1}`:                           {"all", "cannot unmarshal number"},
		`{}`:                                    {"all", "it has no until"},
		`{"until":"soon"}`:                      {"all", "cannot parse"},
		`{"until":"0000-01-01T00:00:00Z"}`:      {"all", "it has no until"},
		`{"until":"9999-12-31T23:00:00-01:00"}`: {"all", "year outside of range"},
		`{"since":"0000-01-01T00:00:00+01:00",` + until + `}`: {"all", "year outside of range"},
		`{` + until + `}`:                                               {"ALL", `its key is not that of its match ""`},
		`{"match":"a/**",` + until + `}`:                                {"all", `its key is not that of its match "a/**"`},
		`{"match":"b",` + until + `}`:                                   {"match/a", `its key is not that of its match "b"`},
		`{"match":"{a",` + until + `}`:                                  {"match/{a", `"{a" is not a valid pattern`},
		`{"match":"/a",` + until + `}`:                                  {"match//a", `"/a" matches no lock`},
		`{"reason":"` + strings.Repeat("x", 8193):                       {"all", "it is too long"},
		`{"match":"` + strings.Repeat("{a,a}", 11) + `",` + until + `}`: {"match/" + strings.Repeat("{a,a}", 11), "at most 500 bytes, 10 commas and 3 braces"},
		`{"match":"` + strings.Repeat("{a,*}", 4) + `",` + until + `}`:  {"match/" + strings.Repeat("{a,*}", 4), "10 commas and 3 braces"},
	} {
		_, err := pause.Parse(c.key, []byte(value))
		require.ErrorContains(t, err, c.want, "%.100s", value)
		require.Less(t, len(err.Error()), 1000)
	}
	r, err := pause.Parse("all", []byte(`{"by":"`+strings.Repeat("b", 300)+`","reason":"`+strings.Repeat("r", 600)+`","more":true,`+until+`}`))
	require.NoError(t, err, "a later version may write more")
	require.Len(t, r.By, 200+len("…"))
	require.Len(t, r.Reason, 500+len("…"))
	r, err = pause.Parse("all", []byte(`{"until":"2026-11-21T20:00:00+02:00"}`))
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC), r.Until, "of another client, as the API shows it")
}

func TestTheLongestRecordCanBeRead(t *testing.T) {
	match, until := strings.Repeat("<", 500), time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)
	r := api.Pause{Match: match, By: strings.Repeat("<", 200), Reason: strings.Repeat("<", pause.MaxReason), Since: until, Until: until}
	value, err := pause.Value(r)
	require.NoError(t, err)
	read, err := pause.Parse(pause.Key(match), []byte(value))
	require.NoError(t, err)
	require.Equal(t, r, read)
}

func TestCheckMatch(t *testing.T) {
	for _, match := range []string{"a", "deploy/**", "a/{b,c}/*", "**", "a,b"} {
		require.NoError(t, pause.CheckMatch(match), match)
	}
	for _, match := range []string{"", "[", "a/", "\xff", strings.Repeat("a", 501), strings.Repeat(",", 11)} {
		require.Error(t, pause.CheckMatch(match), match)
	}
}

// Any client may write a pause: what is taken from it is bounded, can be shown, and is under the key of its pattern.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"match":"nightly/**","until":"2026-11-23T10:00:00Z","since":"2026-11-23T09:00:00Z","by":"ada@host","reason":"why"}`), "x")
	f.Add([]byte(`{"until":"9999-12-31T23:59:59-23:00"}`), "all")
	f.Fuzz(func(t *testing.T, value []byte, key string) {
		p, err := pause.Parse(key, value)
		if err != nil {
			require.LessOrEqual(t, len(err.Error()), 10_000)
			return
		}
		require.Equal(t, key, pause.Key(p.Match))
		require.LessOrEqual(t, len(pause.Words(p)), 10_000)
		text, err := pause.Value(p)
		require.NoError(t, err)
		again, err := pause.Parse(key, []byte(text))
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
