package judges

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

func promises(all []Violation) (broken []string) {
	for _, v := range all {
		broken = append(broken, v.Promise)
	}
	return broken
}

func TestSendingConvicts(t *testing.T) {
	acted := Span{at(50), at(51)}
	for name, c := range map[string]struct {
		Sending
		want []string
	}{
		"nothing is known":                {Sending{Logged: true}, nil},
		"no record":                       {Sending{}, []string{"S7"}},
		"within a hold":                   {Sending{Logged: true, Holds: []Hold{{"", "h", Span{at(49), at(52)}, acted}}}, []string{"S3"}},
		"perhaps before the hold":         {Sending{Logged: true, Holds: []Hold{{"", "h", Span{at(50.5), at(52)}, acted}}}, nil},
		"perhaps after the hold":          {Sending{Logged: true, Holds: []Hold{{"", "h", Span{at(49), at(50.5)}, acted}}}, nil},
		"before the holder's clock":       {Sending{Logged: true, At: at(51), Passes: at(51.2)}, []string{"S2"}},
		"within the slack":                {Sending{Logged: true, At: at(51), Passes: at(51.1)}, nil},
		"without the outages":             {Sending{Logged: true, At: at(51), Passes: at(50), Outages: time.Second, Renewable: at(51.2)}, []string{"S3"}},
		"with the outages":                {Sending{Logged: true, At: at(51), Passes: at(50), Outages: time.Second, Renewable: at(51)}, nil},
		"the newest probe is too old":     {Sending{Logged: true, Shown: at(50), Needed: at(50.1)}, []string{"S3"}},
		"the newest probe is new enough":  {Sending{Logged: true, Shown: at(50), Needed: at(50)}, nil},
		"the leader, before the grace":    {Sending{Logged: true, Leads: true, Deadline: at(50), Clock: at(51.8)}, []string{"S6"}},
		"the leader, after the grace":     {Sending{Logged: true, Leads: true, Deadline: at(50), Clock: at(52)}, nil},
		"another, before its delay":       {Sending{Logged: true, Deadline: at(50), Clock: at(56.8)}, []string{"S6"}},
		"another, after its delay":        {Sending{Logged: true, Deadline: at(50), Clock: at(57)}, nil},
		"early, in a hold, and a standby": {Sending{Logged: true, At: at(51), Passes: at(60), Holds: []Hold{{"", "h", Span{at(49), at(52)}, acted}}, Deadline: at(50), Clock: at(53)}, []string{"S3", "S2", "S6"}},
	} {
		rules := Rules{Grace: 2 * time.Second, StandbyDelay: 5 * time.Second, Slack: 100 * time.Millisecond}
		require.Equal(t, c.want, promises(c.Judge(rules)), name)
	}
}

// lock returns a lock that was acquired at revision 3 and renewed at 5.
func lock(deadline string) *Lock {
	l := NewLock("a")
	for field, value := range map[string]string{"uuid": "u", "locked_at": "1767225600", "auto_unlock_at": deadline, "alive_at": "1767225610.5"} {
		l.Fields[field] = &mvccpb.KeyValue{Value: []byte(value), CreateRevision: 3, ModRevision: 5}
	}
	l.Fields["uuid"].ModRevision, l.Fields["locked_at"].ModRevision = 3, 3
	return l
}

func TestDeletionConvicts(t *testing.T) {
	record := func(uuid, deadline string, revision int64) *Announcement {
		return &Announcement{UUID: uuid, Deadline: deadline, Verdict: verdict.Verdict{Inputs: verdict.Inputs{Revision: revision}}}
	}
	const deadline = "1767225640.5"
	good := record("u", deadline, 5)
	living := Deletion{Lock: lock(deadline), Keys: 4, Records: []*Announcement{good}, Lives: true, Renewed: time.Second, Interval: time.Second}
	dead, late := living, living
	dead.Lives, late.Renewed = false, time.Second+1
	for name, c := range map[string]struct {
		Deletion
		want []string
	}{
		"as the verdict had it":        {Deletion{Lock: lock(deadline), Keys: 4, Records: []*Announcement{good}}, nil},
		"no verdict":                   {Deletion{Lock: lock(deadline), Keys: 4}, []string{"S4"}},
		"another uuid":                 {Deletion{Lock: lock(deadline), Keys: 4, Records: []*Announcement{record("v", deadline, 5)}}, []string{"S1"}},
		"another deadline":             {Deletion{Lock: lock(deadline), Keys: 4, Records: []*Announcement{record("u", "1767225639", 5)}}, []string{"S1"}},
		"written since":                {Deletion{Lock: lock(deadline), Keys: 4, Records: []*Announcement{record("u", deadline, 4)}}, []string{"S1"}},
		"one of two verdicts":          {Deletion{Lock: lock(deadline), Keys: 4, Records: []*Announcement{record("u", deadline, 4), good}}, nil},
		"a key is left":                {Deletion{Lock: lock(deadline), Keys: 3, Records: []*Announcement{good}}, []string{"S4"}},
		"no readable deadline":         {Deletion{Lock: lock("soon"), Keys: 4, Records: []*Announcement{record("u", "soon", 5)}}, []string{"S8"}},
		"its holder lives":             {living, []string{"S3"}},
		"its holder is dead":           {dead, nil},
		"its holder renewed too late":  {late, nil},
		"a millisecond is no deadline": {Deletion{Lock: lock("1767225640500"), Keys: 4, Records: []*Announcement{record("u", "1767225640500", 5)}}, []string{"S8"}},
	} {
		require.Equal(t, c.want, promises(c.Judge(Rules{})), name)
	}
	require.Equal(t, []string{"S6"}, promises(Stays(at(2), at(1))))
	require.Empty(t, Stays(at(1), at(1)))
}

func TestPatience(t *testing.T) {
	l := lock("1767225640.5")
	require.Equal(t, 30*time.Second, l.Patience(), "since alive_at")
	l.Fields["alive_at"].ModRevision = 4
	require.Equal(t, 5*time.Minute, l.Patience(), "neither field is of the last write")
	l.Fields["auto_unlock_at"].ModRevision = 3
	require.Equal(t, 40500*time.Millisecond, l.Patience(), "never renewed")
	l.Fields["auto_unlock_at"].ModRevision = 2
	_, dated := l.Deadline()
	require.False(t, dated, "left over from an earlier holder")
}

func TestJournalConvicts(t *testing.T) {
	var j Journal
	take := func(text string) []string {
		var l Line
		require.NoError(t, json.Unmarshal([]byte(text), &l))
		return promises(j.Take(&l, Span{start, start}))
	}
	removing := func(uuid string) string {
		return `{"msg": "` + api.LogRemoving + `", "lock": "a", "verdict": {"revision": 4}, "record": {"uuid": "` + uuid + `", "auto_unlock_at": "9"}}`
	}
	outcome := func(message, uuid string) string {
		return `{"msg": "` + message + `", "lock": "a", "uuid": "` + uuid + `", "revision": 7}`
	}
	require.Nil(t, j.Last("a"))
	require.Empty(t, take(removing("u")))
	require.Equal(t, "9", j.Last("a").Deadline)
	require.Equal(t, []string{"S7"}, take(removing("u")), "announced again before the outcome")
	require.Empty(t, take(removing("v")), "another holder")
	require.Empty(t, take(outcome(api.LogRemoved, "u")))
	require.Equal(t, "v", j.Last("a").UUID, "the outcome was that of the holder before")
	require.Empty(t, take(outcome(api.LogAmbiguous, "v")))
	require.Equal(t, "v", j.Last("a").UUID, "it may still be carried out")
	require.Empty(t, j.Open())
	require.Len(t, j.Ambiguous(), 1)
	require.Equal(t, int64(7), j.Removals()[0].Revision)
	require.Equal(t, []string{"S7"}, take(`{"msg": "`+api.LogRemoving+`", "lock": "a", "record": {}}`), "no fields")
}

// The daemon with the oldest key leads.
func TestElection(t *testing.T) {
	e := Election{Prefix: "/leader/"}
	event := func(rev int64, what mvccpb.Event_EventType, key, identity string) {
		kv := &mvccpb.KeyValue{Key: []byte("/leader/" + key), Value: []byte(identity), ModRevision: rev, CreateRevision: rev}
		e.Apply(&mvccpb.Event{Type: what, Kv: kv}, at(float64(rev)))
	}
	led := func(identity string, revision int64, since time.Time) bool {
		return e.Led(func(i string) bool { return i == identity }, revision, since)
	}
	require.Empty(t, e.Leader())
	event(3, mvccpb.Event_PUT, "a", "7")
	event(4, mvccpb.Event_PUT, "b", "8")
	backup := e.Candidates
	event(5, mvccpb.Event_DELETE, "a", "")
	require.False(t, led("7", 2, at(5)))
	require.True(t, led("7", 4, at(5)))
	require.False(t, led("8", 4, at(5)))
	require.False(t, led("7", 6, at(5)))
	require.True(t, led("7", 6, at(4)), "it may not know yet")
	require.True(t, led("8", 6, at(5)))
	event(7, mvccpb.Event_DELETE, "b", "")
	require.False(t, led("8", 8, at(7)))
	require.Empty(t, e.Leader())
	e.Restore(backup, at(9))
	require.Equal(t, "7", e.Leader())
	require.True(t, led("7", math.MaxInt64, at(9)))
}
