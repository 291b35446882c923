package page

import (
	"log/slog"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// outlook is what will happen to a lock, in a line. The instant At stands between Lead and Tail, as the
// time until then; there may be none.
type outlook struct {
	Lead, Tail string
	At         time.Time
}

// outlookOf returns the outlook of a lock. held reports whether a hold prevents removals.
func outlookOf(l *api.LockDetail, held bool) outlook {
	v := l.Verdict
	at := v.Now.Add(v.Remaining)
	switch {
	case v.Trigger == "":
		return outlook{Lead: "Is never removed automatically."}
	case v.Mode == verdict.Off:
		return outlook{Lead: "Is not removed automatically: its mode is off."}
	case v.Reason == verdict.ByPause:
		return outlook{Lead: "Is not removed before the pause of such locks ends", Tail: ".", At: v.PausedUntil}
	case v.Mode == verdict.DryRun && v.Remaining <= 0:
		return outlook{Lead: "Would be removed now, but its mode is dry-run."}
	case v.Mode == verdict.DryRun:
		return outlook{Lead: "Would be removed", Tail: ", but its mode is dry-run.", At: at}
	case v.Remaining <= 0 && held:
		return outlook{Lead: "Was due", Tail: ". Removals are on hold.", At: at}
	case v.Remaining <= 0:
		return outlook{Lead: "Was due", Tail: " and is being removed.", At: at}
	}
	tail := " unless its holder renews it."
	if v.Trigger == verdict.Orphan {
		tail = " unless it is modified."
	}
	if held {
		tail += " Removals are on hold at this moment."
	}
	return outlook{Lead: "Will be removed", Tail: tail, At: at}
}

// holding reports whether a hold stops removals.
func holding(s *api.Status) bool {
	return slices.ContainsFunc(s.Holds, func(h api.Hold) bool { return h.Hold.Kind().Stops })
}

// input is one key of a verdict.
type input struct{ Key, Value, Meaning string }

// inputs returns what a verdict was decided on, in the keys of the log.
func inputs(v slog.LogValuer) (all []input) {
	meanings := meanings()
	for _, a := range v.LogValue().Group() {
		all = append(all, input{a.Key, valueOf(a.Value), meanings[a.Key]})
	}
	return all
}

func valueOf(v slog.Value) string {
	switch t := v.Any().(type) {
	case time.Time:
		return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
	case time.Duration:
		return t.Round(time.Millisecond).String()
	}
	return terminal.Text(v.String())
}

// meanings says of each key of a verdict what it is.
func meanings() map[string]string {
	return map[string]string{
		"action":             "what this replica decided",
		"age":                "how long ago this replica learned of the last write",
		"alive_at":           "the last renewal, by the holder's clock",
		"allowance":          "what outages of etcd add to the deadline",
		"auto_unlock_at":     "the deadline, by the holder's clock",
		"due":                "from when the lock may be removed",
		"grace":              "how long after its deadline it may be removed",
		"late":               "whether the last write was learned late",
		"leader":             "whether this replica acts first",
		"locked_at":          "the acquisition, by the holder's clock",
		"measured":           "whether the holder's clock was observed",
		"mode":               "enforce, dry-run or off",
		"not_before":         "how long a step of this replica's clock keeps the lock",
		"now":                "this replica's clock",
		"offset":             "the holder's clock minus this replica's",
		"orphan_due":         "when its fields have stayed unmodified for long enough",
		"pause":              "who paused the removal of such locks, and why",
		"paused_until":       "the end of that pause",
		"patience_allowance": "what outages of etcd add to the patience",
		"policy":             "the pattern that matched",
		"reason":             "the rule that decides when it is removed",
		"remaining":          "how long until this replica acts",
		"removable":          "whether it may be removed at all",
		"renewed":            "whether the deadline was moved since the acquisition",
		"revision":           "the newest revision of its keys",
		"standby_delay":      "how much later than the leader a standby acts",
		"storm_delay":        "what a storm adds",
		"token":              "the fencing token",
		"tolerance":          "by how much clocks may differ",
		"trigger":            "why it may be removed",
	}
}
