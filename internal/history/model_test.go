package history

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// heard is what a period is to be.
type heard struct {
	uuid, hostname      string
	token, since, until int64
	overwritten         bool
	leftovers           int
	deadlineCreated     int64
	deadlines           []int64 // when auto_unlock_at was put in the period
}

// chronicle writes a lock on etcd, and what its history is to be.
type chronicle struct {
	world
	present  map[string]bool
	periods  []heard // the newest last
	holding  bool
	deadline struct {
		created int64
		puts    []int64
	}
	hostname string
	next     int
}

func (c *chronicle) field(f string) string { return c.key("a/b", f) }

// write puts fields, and deletes those without a value.
func (c *chronicle) write(fields map[string]string) int64 {
	var ops []clientv3.Op
	for f, v := range fields {
		if v == "" {
			ops = append(ops, clientv3.OpDelete(c.field(f)))
		} else {
			ops = append(ops, clientv3.OpPut(c.field(f), v))
		}
	}
	revision := c.Put(ops...)
	for f, v := range fields {
		if f == "auto_unlock_at" && v == "" {
			c.deadline.created, c.deadline.puts = 0, nil
		} else if f == "auto_unlock_at" {
			if len(c.deadline.puts) == 0 {
				c.deadline.created = revision
			}
			c.deadline.puts = append(c.deadline.puts, revision)
		}
		if f == "hostname" {
			c.hostname = v
		}
		delete(c.present, f)
		if v != "" {
			c.present[f] = true
		}
	}
	return revision
}

func (c *chronicle) now() *heard { return &c.periods[len(c.periods)-1] }

func (c *chronicle) begin(token, since int64, uuid string) {
	c.periods = append(c.periods, heard{uuid: uuid, token: token, since: since})
	c.holding = true
}

// end keeps what the lock was like before the revision of the end.
func (c *chronicle) end(until int64, before chronicle) {
	h := c.now()
	h.until, h.hostname, h.deadlineCreated, h.deadlines = until, before.hostname, before.deadline.created, slices.Clone(before.deadline.puts)
	c.holding = false
}

func (c *chronicle) uuid() string {
	c.next++
	return fmt.Sprint("uuid-", c.next)
}

func (c *chronicle) step(op string) {
	before := *c
	long := stamp(0)
	times := map[string]string{"auto_unlock_at": long, "alert_at": long, "alive_at": long}
	switch op {
	case "take":
		if c.holding {
			return
		}
		times["uuid"], times["hostname"], times["locked_at"] = c.uuid(), fmt.Sprint("host-", c.next), long
		if c.next%3 == 0 { // the deadline of an earlier holder stays
			delete(times, "auto_unlock_at")
		}
		revision := c.write(times)
		c.begin(revision, revision, times["uuid"])
	case "renew": // blindly
		c.write(times)
	case "release", "uuid only":
		if !c.holding {
			return
		}
		gone := map[string]string{"uuid": ""}
		if op == "release" { // as the clients that leave fields
			gone["auto_unlock_at"], gone["hostname"], gone["locked_at"] = "", "", ""
		}
		c.end(c.write(gone), before)
		c.now().leftovers = len(c.present)
	case "overwrite":
		if !c.holding {
			return
		}
		uuid, token := c.uuid(), c.now().token
		revision := c.write(map[string]string{"uuid": uuid})
		c.end(revision, before)
		c.now().overwritten = true
		c.begin(token, revision, uuid)
	case "put again":
		if c.holding {
			c.write(map[string]string{"uuid": c.now().uuid})
		}
	case "changed by others":
		c.write(map[string]string{"hostname": "other"})
	case "others":
		c.Set("a/b/c", "uuid", "nested", "auto_unlock_at", long)
		c.Set("a", "uuid", "outer")
		c.Set("a/b!", "uuid", "neighbour")
	}
}

// expected are the periods, the newest first, as far as they are known since the oldest revision.
func (c *chronicle) expected(oldest int64, renewals int) (all []api.Period) {
	if c.holding {
		c.end(0, *c)
	}
	for _, h := range slices.Backward(c.periods) {
		if h.until != 0 && h.until <= oldest {
			break
		}
		if h.since <= oldest {
			h.since = h.token
		}
		var puts []int64
		for _, put := range h.deadlines {
			if put > h.since && (h.until == 0 || put < h.until) {
				puts = append(puts, put)
			}
		}
		p := api.Period{Token: h.token, UUID: h.uuid, Hostname: h.hostname, Acquired: api.Moment{Revision: h.since}}
		if h.until != 0 {
			p.Ended = &api.Ended{Moment: api.Moment{Revision: h.until}, Leftovers: h.leftovers}
		}
		if h.overwritten {
			p.Ended.How = api.EndOverwritten
		}
		for i, put := range slices.Backward(puts) {
			if len(p.Renewals) == renewals || i+1 < len(puts) && puts[i+1] <= oldest {
				break
			}
			p.Renewals = append(p.Renewals, api.Renewal{Moment: api.Moment{Revision: put}})
		}
		if p.MoreRenewals = int64(len(puts) - len(p.Renewals)); h.deadlineCreated < h.since && h.since < oldest {
			p.MoreRenewals = int64(len(puts)-len(p.Renewals)) - int64(countUpTo(puts, oldest))
		}
		p.MoreRenewals = max(0, p.MoreRenewals)
		all = append(all, p)
	}
	return all
}

func countUpTo(revisions []int64, last int64) (n int) {
	for _, r := range revisions {
		if r <= last {
			n++
		}
	}
	return n
}

// told is a period in the form of expected.
func told(p api.Period) api.Period {
	short := api.Period{Token: p.Token, UUID: p.UUID, Hostname: p.Hostname, Acquired: api.Moment{Revision: p.Acquired.Revision}, MoreRenewals: p.MoreRenewals}
	if p.Ended != nil {
		short.Ended = &api.Ended{Moment: api.Moment{Revision: p.Ended.Revision}, Leftovers: p.Ended.Leftovers}
		if p.Ended.How == api.EndOverwritten {
			short.Ended.How = p.Ended.How
		}
	}
	for _, r := range p.Renewals {
		short.Renewals = append(short.Renewals, api.Renewal{Moment: api.Moment{Revision: r.Revision}})
	}
	return short
}

// Whatever is done to a lock, its history tells who held it from when to when, and no other.
func TestHistoryIsWhatHappened(t *testing.T) {
	e := etcdtest.Start(t, localetcd.Options{})
	ops := []string{"take", "take", "renew", "renew", "release", "uuid only", "overwrite", "put again", "changed by others", "others"}
	checks := 0
	rapid.Check(t, func(r *rapid.T) {
		checks++
		mine := *e
		mine.Prefix = fmt.Sprintf("/%d/", checks)
		c := &chronicle{world: newWorldOn(t, &mine), present: make(map[string]bool)}
		all := rapid.SliceOfN(rapid.SampledFrom(ops), 1, 60).Draw(r, "ops")
		compacted := rapid.IntRange(0, 2*len(all)).Draw(r, "compacted")
		oldest := c.Set("x", "x", "x") // newer than what an earlier check compacted
		first := oldest
		for i, op := range all {
			c.step(op)
			if i == compacted {
				now, err := c.Client.Get(t.Context(), c.key("x", "x"))
				require.NoError(r, err)
				oldest = now.Header.Revision
			}
		}
		if oldest > first {
			_, err := c.Client.Compact(t.Context(), oldest)
			require.NoError(r, err)
		}
		renewals := rapid.IntRange(0, 4).Draw(r, "renewals")
		p, err := c.Read(t.Context(), "a/b", Bounds{Periods: 100, Renewals: renewals, Time: etcdtest.Soon})
		require.NoError(r, err)
		if oldest > first {
			require.Equal(r, oldest, p.FromRevision)
			require.True(r, p.Compacted)
		}
		oldest = max(oldest, p.FromRevision)
		var got []api.Period
		for _, period := range p.Periods {
			got = append(got, told(period))
		}
		require.Equal(r, c.expected(oldest, renewals), got)
		require.False(r, p.Truncated)
	})
}
