package lockstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

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
	*harness
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

func (c *chronicle) field(f string) string { return c.Layout.Key("a/b", f) }

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
	revision := c.commit(ops...)
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
	times := map[string]string{"auto_unlock_at": past, "alert_at": past, "alive_at": past}
	switch op {
	case "take":
		if c.holding {
			return
		}
		times["uuid"], times["hostname"], times["locked_at"] = c.uuid(), fmt.Sprint("host-", c.next), past
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
		c.set("a/b/c", "uuid", "nested", "auto_unlock_at", past)
		c.set("a", "uuid", "outer")
		c.set("a/b!", "uuid", "neighbour")
	}
}

// expected are the periods, the newest first, as far as they are known since the oldest revision.
func (c *chronicle) expected(oldest int64, renewals int) (all []Period) {
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
		for _, p := range h.deadlines {
			if p > h.since && (h.until == 0 || p < h.until) {
				puts = append(puts, p)
			}
		}
		t := Period{Since: h.since, Until: h.until, Overwritten: h.overwritten, Leftovers: h.leftovers}
		for i, p := range slices.Backward(puts) {
			if len(t.Renewals) == renewals || i+1 < len(puts) && puts[i+1] <= oldest {
				break
			}
			t.Renewals = append(t.Renewals, Renewal{Revision: p})
		}
		if t.More = int64(len(puts) - len(t.Renewals)); h.deadlineCreated < h.since && h.since < oldest {
			t.More = int64(len(puts)-len(t.Renewals)) - int64(countUpTo(puts, oldest))
		}
		t.More = max(0, t.More)
		t.Name = h.uuid + " " + h.hostname
		all = append(all, t)
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
func told(t Period) Period {
	short := Period{Since: t.Since, Until: t.Until, Overwritten: t.Overwritten, Leftovers: t.Leftovers, More: t.More}
	for _, r := range t.Renewals {
		short.Renewals = append(short.Renewals, Renewal{Revision: r.Revision})
	}
	short.Name = t.UUID() + " " + t.Hostname()
	return short
}

// Whatever is done to a lock, its history tells who held it from when to when, and no other.
func TestHistoryIsWhatHappened(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{UnsafeNoFsync: true})
	ops := []string{"take", "take", "renew", "renew", "release", "uuid only", "overwrite", "put again", "changed by others", "others"}
	rapid.Check(t, func(r *rapid.T) {
		c := &chronicle{harness: newHarnessOn(t, client, client), present: make(map[string]bool)}
		all := rapid.SliceOfN(rapid.SampledFrom(ops), 1, 60).Draw(r, "ops")
		compacted := rapid.IntRange(0, 2*len(all)).Draw(r, "compacted")
		oldest := c.set("x", "x", "x") // newer than what an earlier check compacted
		first := oldest
		for i, op := range all {
			c.step(op)
			if i == compacted {
				now, err := client.Get(c.ctx, "x")
				require.NoError(r, err)
				oldest = now.Header.Revision
			}
		}
		if oldest > first {
			_, err := client.Compact(c.ctx, oldest)
			require.NoError(r, err)
		}
		renewals := rapid.IntRange(0, 4).Draw(r, "renewals")
		p, err := c.History(c.ctx, "a/b", Bounds{Periods: 100, Renewals: renewals, Time: time.Minute})
		require.NoError(r, err)
		if oldest > first {
			require.Equal(r, oldest, p.From)
			require.True(r, p.Compacted)
		}
		oldest = max(oldest, p.From)
		var got []Period
		for _, period := range p.Periods {
			got = append(got, told(period))
		}
		require.Equal(r, c.expected(oldest, renewals), got)
		require.False(r, p.Truncated)
	})
}
