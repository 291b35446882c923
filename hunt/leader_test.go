//go:build hunt

package hunt

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// electionPrefix is that of the keys of candidates, by default.
const electionPrefix = "/unlocker/leader" + prefix

// election follows which daemon leads: the one with the oldest key.
type election struct {
	candidates []candidate // in the order of their keys' creation
	reigns     []reign
}

type candidate struct{ key, identity string }

// reign is the time in which a daemon led, in revisions. The last one has not ended.
type reign struct {
	identity string
	from, to int64
	ended    time.Time // when the replay saw the end
}

// revised applies the event of one revision.
func (e *election) revised(rev int64, ev *clientv3.Event, now time.Time) {
	key := string(ev.Kv.Key)
	switch {
	case !strings.HasPrefix(key, electionPrefix):
		return
	case ev.Type == mvccpb.DELETE:
		e.candidates = slices.DeleteFunc(e.candidates, func(c candidate) bool { return c.key == key })
	case ev.IsCreate():
		e.candidates = append(e.candidates, candidate{key, string(ev.Kv.Value)})
	}
	leader := ""
	if len(e.candidates) > 0 {
		leader = e.candidates[0].identity
	}
	last := len(e.reigns) - 1
	if last >= 0 && e.reigns[last].identity == leader {
		return
	}
	if last >= 0 {
		e.reigns[last].to, e.reigns[last].ended = rev, now
	}
	e.reigns = append(e.reigns, reign{identity: leader, from: rev})
}

// led reports whether the process led at a revision, or until a time after since.
func (e *election) led(pid int, rev int64, since time.Time) bool {
	own := fmt.Sprintf("_%d", pid)
	return slices.ContainsFunc(e.reigns, func(r reign) bool {
		return strings.HasSuffix(r.identity, own) && r.from <= rev && (r.to == 0 || r.to > rev || r.ended.After(since))
	})
}
