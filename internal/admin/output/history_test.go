package output_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// past is a history with every end, and texts that would harm a terminal.
func past() api.History {
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	margin := 0.07
	period := func(token int64, locked int, ended *api.Ended) api.Period {
		return api.Period{
			Token: token, UUID: "0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab", Hostname: "worker-17.example.org", Owner: "billing", Purpose: "invoices",
			Acquired: api.Moment{Revision: token, At: at(locked)}, Renewals: []api.Renewal{}, Ended: ended,
		}
	}
	ended := func(revision int64, how string, after, before int) *api.Ended {
		return &api.Ended{Moment: api.Moment{Revision: revision}, How: how, After: at(after), Before: at(before)}
	}
	h := api.History{Name: evil, Now: now, Revision: 900, FromRevision: 100, Truncated: true, Periods: []api.Period{
		period(800, -10, nil),
		period(700, -30, ended(790, api.EndReleased, -20, -10)),
		period(600, -40, ended(690, api.EndRemoved, -40, -30)),
		period(500, -50, ended(590, api.EndManual, -45, -40)),
		period(400, -60, ended(490, api.EndExpired, -55, -50)),
		period(400, -70, ended(480, api.EndOverwritten, -70, -60)),
		period(300, -80, &api.Ended{Moment: api.Moment{Revision: 390}, How: api.EndLate, After: at(-75), Leftovers: 3}),
		{Token: 200, Renewals: []api.Renewal{}, Ended: &api.Ended{Moment: api.Moment{Revision: 290}, How: api.EndRemoved}},
	}}
	h.Periods[0].Renewals, h.Periods[0].MoreRenewals = []api.Renewal{{Margin: &margin}, {}}, 98
	h.Periods[1].Hostname, h.Periods[1].UUID, h.Periods[1].Purpose = evil, evil, evil+strings.Repeat("x", 300)
	for i, who := range map[int]string{3: "anna@ops-1", 4: ""} {
		e := h.Periods[i].Ended
		e.At, e.Who = at(-42), who
	}
	h.Periods[3].Ended.Reason = "OPS-1: " + evil + strings.Repeat("x", 300)
	return h
}

func TestHistory(t *testing.T) {
	for _, f := range []output.Format{output.Table, output.Wide, output.JSON, output.YAML, output.Name} {
		var b bytes.Buffer
		require.NoError(t, output.History(&b, f, past()))
		requireHarmless(t, b.String())
		golden(t, "history."+string(f), b.String())
		for _, line := range strings.Split(b.String(), "\n") {
			if f == output.Table && !strings.HasPrefix(line, " ") { // not what is said of an end
				require.LessOrEqual(t, terminal.Columns(line), 80)
			}
		}
		if f == output.JSON {
			var again api.History
			require.NoError(t, json.Unmarshal(b.Bytes(), &again))
			require.Equal(t, past(), again)
		}
	}
}

func TestHistoryNotes(t *testing.T) {
	h := past()
	h.Incomplete = "the records \x1b[2J"
	notes := strings.Join(output.HistoryNotes(h, false), "\n") + "\n"
	requireHarmless(t, notes)
	golden(t, "history.notes", notes)
	h.Truncated, h.Compacted, h.Incomplete = false, true, ""
	golden(t, "history-asked.notes", strings.Join(output.HistoryNotes(h, true), "\n")+"\n")
	h.Periods, h.Compacted = h.Periods[:1], false
	require.Empty(t, output.HistoryNotes(h, false))
}
