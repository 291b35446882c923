package live

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// resume opens a stream for a client that has what another has received, as a browser does.
func (w *world) resume(query string, from *client) *client {
	c := w.openSlow(query, from.id)
	from.mu.Lock()
	c.shown, c.matched, c.daemon = maps.Clone(from.shown), from.matched, from.daemon
	from.mu.Unlock()
	go c.read()
	return c
}

// Whatever happens, and however often it loses its connection, a client that applies the events has
// what a page shows, and the status.
func TestAClientHasWhatAPageShows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rapid.Bool().Draw(rt, "http2"), func(t *testing.T, w *world) {
			w.t = t
			queries := []string{"", "q=a", "state=held", "state=expired&state=overdue"}
			clients := map[string]*client{}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				query := rapid.SampledFrom(queries).Draw(rt, "query")
				switch rapid.SampledFrom([]string{"put", "put", "put", "many", "release", "status", "pass", "open", "drop", "drop for long"}).Draw(rt, "step") {
				case "put":
					w.put(name(rt), state(rt), func(l *api.Lock) { l.Revision = time.Now().UnixNano() })
				case "many":
					for range 10 {
						w.put(name(rt), state(rt), func(l *api.Lock) { l.Purpose = fmt.Sprintf("%60000d", rapid.IntRange(0, 3).Draw(rt, "purpose")) })
						time.Sleep(minRest)
					}
				case "release":
					w.release(name(rt))
				case "status":
					w.change(func(s *source) { s.status.Backlog++ })
				case "pass":
					time.Sleep(time.Duration(rapid.IntRange(1, 2000).Draw(rt, "ms")) * time.Millisecond)
				case "open":
					if clients[query] == nil {
						clients[query] = w.open(query, "")
					}
				case "drop", "drop for long":
					if c := clients[query]; c != nil {
						c.close()
						time.Sleep(time.Duration(rapid.IntRange(0, 40).Draw(rt, "seconds away")) * time.Second)
						clients[query] = w.resume(query, c)
					}
				}
			}
			time.Sleep(3 * interval)
			for query, c := range clients {
				c.got()
				want := w.page(queryOf(query))
				require.Equal(t, want.Matched, c.matched, query)
				shown := map[string]api.Lock{}
				for _, l := range want.Locks {
					shown[l.Name] = l
				}
				require.Equal(t, shown, c.shown, query)
				require.Equal(t, w.status.Backlog, c.daemon.Backlog)
				c.close()
			}
		})
	})
}

func name(t *rapid.T) string { return rapid.StringMatching("[abc][0-2]").Draw(t, "name") }

func state(t *rapid.T) string {
	return rapid.SampledFrom([]string{"held", "overdue", "expired"}).Draw(t, "state")
}
