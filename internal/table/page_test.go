package table

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestPageWalksAllLocksInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 300 {
			w.acquire(fmt.Sprintf("%03d", (i*77)%300), time.Minute, time.Hour)
		}
		var walked []string
		q := api.Query{Limit: 7}
		for more := true; more; {
			page, err := w.Page(w.ctx, q)
			require.NoError(t, err)
			for _, it := range page.Items {
				walked = append(walked, it.Name)
			}
			more = page.More
			require.Equal(t, more, len(walked) < 300)
			require.Equal(t, 300, page.Matched)
			q.After = page.Items[len(page.Items)-1].Position.After()
		}
		require.Len(t, walked, 300)
		for i, name := range walked {
			require.Equal(t, fmt.Sprintf("%03d", i), name)
		}
	})
}

func TestPageFilters(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("billing/a", time.Minute, time.Hour)
		w.acquire("billing/b", -time.Minute, time.Hour)
		other := fields(-time.Minute, time.Hour)
		other["hostname"], other["owner"] = "h2", "o2"
		w.live(w.put("mail", other))
		for _, c := range []struct {
			query   api.Query
			want    []string
			matched int
		}{
			{api.Query{}, []string{"billing/a", "billing/b", "mail"}, 3},
			{api.Query{States: []string{protocol.Overdue.String()}}, []string{"billing/b", "mail"}, 2},
			{api.Query{States: []string{protocol.Held.String(), protocol.Undated.String()}}, []string{"billing/a"}, 1},
			{api.Query{Contains: "ing/"}, []string{"billing/a", "billing/b"}, 2},
			{api.Query{Hostname: "h2"}, []string{"mail"}, 1},
			{api.Query{Hostname: "h"}, nil, 0},
			{api.Query{Owner: "o2"}, []string{"mail"}, 1},
			{api.Query{Owner: "o"}, nil, 0},
			{api.Query{After: Position{name: "billing/a"}.After(), Hostname: "h1"}, []string{"billing/b"}, 2},
		} {
			c.query.Limit = 10
			page, err := w.Page(w.ctx, c.query)
			require.NoError(t, err)
			require.False(t, page.More)
			require.Equal(t, c.matched, page.Matched)
			var names []string
			for _, it := range page.Items {
				names = append(names, it.Name)
			}
			require.Equal(t, c.want, names, "%+v", c.query)
		}
	})
}

// unhealthy are locks in each state but held, with the fields that make them so.
func unhealthy() map[string]map[string]string {
	return map[string]map[string]string{
		"overdue":   fields(-time.Minute, time.Hour),
		"expired":   fields(-2*time.Hour, -time.Minute),
		"undated":   {"uuid": "u", "locked_at": at(-time.Minute)},
		"malformed": {"uuid": "u", "auto_unlock_at": "soon"},
		"orphaned":  {"alert_at": at(time.Minute)},
	}
}

func TestUrgencyOrdersStatesAndTheirTimes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for name, f := range unhealthy() {
			w.live(w.put(name, f))
		}
		w.acquire("off/expired", -time.Minute, -2*time.Minute)
		w.acquire("off/overdue", -time.Millisecond, time.Hour)
		w.acquire("held later", 2*time.Minute, time.Hour)
		w.acquire("held soon", time.Minute, 2*time.Hour)
		w.acquire("held soon, too", time.Minute, time.Hour)
		w.acquire("overdue longest", -time.Second, 59*time.Minute)
		w.acquire("expired longest", -time.Minute, -2*time.Minute)
		w.live(w.put("undated, alert soon", map[string]string{"uuid": "u", "alert_at": at(-2 * time.Minute)}))
		w.live(w.put("undated, no times", map[string]string{"uuid": "u"}))
		// Its clock is an hour slow: by ours it is expired for 90 seconds.
		slow := fields(-2*time.Hour, -time.Hour-90*time.Second)
		slow["locked_at"] = at(-time.Hour)
		w.live(w.put("expired by a slow clock", slow))
		require.Equal(t, -time.Hour, w.observation("expired by a slow clock").Offset)

		page, err := w.Page(w.ctx, api.Query{ByUrgency: true, Limit: 100})
		require.NoError(t, err)
		var got []string
		for _, it := range page.Items {
			got = append(got, it.Name)
		}
		require.Equal(t, []string{"expired longest", "expired by a slow clock", "expired", "overdue longest", "off/overdue", "overdue", "malformed", "undated, alert soon", "undated", "undated, no times",
			"orphaned", "off/expired", "held soon", "held soon, too", "held later"}, got)
	}, func(o *Options) {
		o.Rules.Policies = []verdict.Policy{{Match: "off/*", Mode: verdict.Off, Grace: grace}}
	})
}

// The text of positions has their order, and they can be parsed.
func TestPositionsAsText(t *testing.T) {
	positions := rapid.Custom(func(t *rapid.T) Position {
		return Position{
			rank: rapid.ByteRange(1, 6).Draw(t, "rank"),
			at:   rapid.OneOf(rapid.Just(int64(noTime)), rapid.Int64Range(0, noTime)).Draw(t, "at"),
			name: rapid.StringN(1, 9, 99).Draw(t, "name"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := positions.Draw(t, "a"), positions.Draw(t, "b")
		require.Equal(t, a.compare(b), cmp.Compare(a.String(), b.String()))
		parsed, err := parsePosition(a.String(), true)
		require.NoError(t, err)
		require.Equal(t, a, parsed)
		byName, err := parsePosition(a.name, false)
		require.NoError(t, err)
		require.Equal(t, a.name, byName.String())
	})
	for _, text := range []string{"", "billing/invoices", "100000000000000", "0000000000000001x", "7000000000000001x", "1-0000000000001x"} {
		_, err := parsePosition(text, true)
		require.Error(t, err, text)
	}
}

// What begins as an After does and is none is refused.
func TestAfterIsEncoded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, after := range []string{"YmF0Y2g*", "YmF0Y2gx=", "*"} {
			_, err := w.Page(w.ctx, api.Query{After: after, Limit: 1})
			require.ErrorIs(t, err, api.ErrAfter, after)
		}
	})
}

// A walk over pages by urgency shows each lock once, and several queries share a scan.
func TestPagesOfSeveralQueries(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for name, f := range unhealthy() {
			w.live(w.put(name, f))
		}
		for i := range 400 {
			w.acquire(fmt.Sprintf("%03d", i), time.Duration((i*77)%400-200)*time.Minute, 5*time.Hour)
		}
		whole, err := w.Page(w.ctx, api.Query{ByUrgency: true, Limit: 1000})
		require.NoError(t, err)
		require.Len(t, whole.Items, 405)
		require.True(t, slices.IsSortedFunc(whole.Items, func(a, b View) int { return cmp.Compare(a.Position.String(), b.Position.String()) }))
		var walked []View
		for q := (api.Query{ByUrgency: true, Limit: 7}); len(walked) < 405; {
			pages, _, err := w.Pages(w.ctx, []api.Query{q, {States: []string{protocol.Malformed.String()}, Limit: 1}})
			require.NoError(t, err)
			require.Equal(t, 405, pages[0].Matched)
			require.Equal(t, 1, pages[1].Matched)
			require.Equal(t, "malformed", pages[1].Items[0].Name)
			walked = append(walked, pages[0].Items...)
			require.Equal(t, len(walked) < 405, pages[0].More)
			q.After = walked[len(walked)-1].Position.After()
		}
		require.Equal(t, whole.Items, walked)
	})
}

// selected is the selection of a query that is valid.
func selected(tb testing.TB, q api.Query) selection {
	tb.Helper()
	s, err := newSelection(q)
	require.NoError(tb, err)
	return s
}

// While a scan is suspended, locks are released and acquired.
func TestLocksThatChangeDuringAScan(t *testing.T) {
	c := alone(t)
	const n = 400
	fill(c, n, 0)
	found := []selection{selected(t, api.Query{Limit: 2 * n})}
	next, stop := iter.Pull(c.batches(1))
	defer stop()
	batch, _ := next()
	c.offer(batch, found, c.now())
	again, gone := batch[0].Name, batch[1]
	for _, e := range slices.Clone(batch[:2]) {
		c.drop(e, 0, c.now())
	}
	c.offer([]*entry{acquireAgain(t, c, again)}, found, c.now()) // as the iteration may
	for batch, more := next(); more; batch, more = next() {
		c.offer(batch, found, c.now())
	}
	page := found[0].page()
	require.Equal(t, n, page.Matched)
	tokens := map[string]int64{}
	for _, it := range page.Items {
		tokens[it.Name] = it.Token
	}
	require.Len(t, page.Items, len(tokens), "each once")
	require.EqualValues(t, 1<<40, tokens[again], "as it is now")
	require.Contains(t, tokens, gone.Name, "as it was")
}

// acquireAgain lists a lock that was dropped, with another holder.
func acquireAgain(t *testing.T, c *core, name string) *entry {
	t.Helper()
	var b protocol.Builder
	b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte("another"), Create: 1 << 40, Mod: 1 << 40})
	require.NoError(t, c.list([]protocol.Lock{b.Lock(name)}))
	return c.locks[name]
}

// A page is full, and says that more follow, although it was cut while it had a lock twice.
func TestALockThatComesTwiceDoesNotEndAWalk(t *testing.T) {
	const limit, n = 10, 400
	c := alone(t)
	fill(c, n, 0)
	found := []selection{selected(t, api.Query{Limit: limit})}
	first := c.locks[fmt.Sprintf("batch/job-%010d", 0)]
	c.offer([]*entry{first}, found, c.now())
	c.drop(first, 0, c.now())
	acquireAgain(t, c, first.Name)
	for i := range n { // as the iteration may
		c.offer([]*entry{c.locks[fmt.Sprintf("batch/job-%010d", i)]}, found, c.now())
		found[0].trim()
	}
	page := found[0].page()
	require.Equal(t, n, page.Matched)
	require.Len(t, page.Items, limit)
	require.True(t, page.More, "%d locks follow", n-limit)
	require.EqualValues(t, 1<<40, page.Items[0].Token, "as it is now")
}

// A page is right although most of what came was not kept, also where the last that was comes again.
func TestAScanKeepsTheFirst(t *testing.T) {
	const limit, n = 10, 400
	c := alone(t)
	fill(c, n, 0)
	found := []selection{selected(t, api.Query{Limit: limit})}
	name := func(i int) string { return fmt.Sprintf("batch/job-%010d", i) }
	for i := range n {
		c.offer([]*entry{c.locks[name((i*77)%n)]}, found, c.now())
		found[0].trim()
	}
	require.True(t, found[0].full)
	found[0].cut()
	c.offer([]*entry{c.locks[found[0].last.name]}, found, c.now())
	page := found[0].page()
	require.Equal(t, n, page.Matched)
	require.True(t, page.More)
	for i, it := range page.Items {
		require.Equal(t, name(i), it.Name)
	}
}

// Other calls come between the parts of a scan, and it says for how long it kept them waiting.
func TestAScanGivesWay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const n = 400
		for i := range n {
			w.acquire(fmt.Sprint(i), time.Hour, time.Hour)
		}
		seen, parts, between := 0, 0, 0
		blocked, err := w.sweep(w.ctx, 1, func(_ *core, batch []*entry, _ reading) {
			seen += len(batch)
			parts++
			time.Sleep(maxBlock)
		}, func() { between++ })
		require.NoError(t, err)
		require.Equal(t, n, seen)
		require.Greater(t, parts, 3)
		require.Equal(t, parts, between)
		require.Equal(t, time.Duration(parts)*maxBlock, blocked)
	})
}

// What is between two looks at the clock is bounded for many queries and long names, too, and what
// was found is not sorted there.
func TestAScanDoesLittleBetweenLooksAtTheClock(t *testing.T) {
	long := strings.Repeat("x", scanBytes)
	for _, c := range []struct {
		name          string
		queries, most int
	}{
		{"usual", 1, scanBytes/lockBytes + 1},
		{"usual", 32, 3},
		{long, 1, 1},
		{long, 32, 1},
	} {
		core := alone(t)
		core.begin(1<<41, false)
		for i := range 1000 {
			acquireAgain(t, core, fmt.Sprint(c.name, i))
		}
		core.end()
		for batch := range core.batches(c.queries) {
			require.LessOrEqual(t, len(batch), c.most)
		}
		found := make([]selection, c.queries)
		for i := range found {
			found[i] = selected(t, api.Query{ByUrgency: true, Limit: 1})
		}
		for batch := range core.batches(c.queries) {
			core.offer(batch, found, core.now())
		}
		require.Len(t, found[0].items, 1000, "as it came")
		found[0].trim()
		require.Len(t, found[0].items, 2)
		found[0].items = slices.Clip(found[0].items)
		found[0].trim()
		require.GreaterOrEqual(t, cap(found[0].items), 2+room)
	}
}
