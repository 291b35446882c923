package page

import (
	"fmt"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// notice is a line of the banner. assets/status.js has the same lines, for pages that are live.
type notice struct {
	// Level is bad, warn or info.
	Level       string
	Title, Text string
	// Word precedes When.
	Word string
	When moment
}

// Notices returns what is wrong, or other than usual, the worst first.
func (d document) Notices(s api.Status) (all []notice) {
	if !s.Ready {
		all = append(all, notice{Level: "bad", Title: "The list is not complete:", Text: "the daemon has not read all locks and pauses yet."})
	}
	if !s.Etcd.Up {
		all = append(all, notice{"bad", "The connection to etcd is lost.", s.Etcd.Error, "the list is as of", d.At(s.Etcd.Progress)})
	}
	for _, h := range s.Holds {
		all = append(all, notice{string(h.Hold.Kind().Severity), "No lock is removed:", h.Reason, "since", d.At(h.Since)})
	}
	if verdict.Mode(s.Mode) == verdict.Off {
		all = append(all, notice{Level: "info", Title: "No lock is removed:", Text: "reaper.mode is off"})
	}
	for _, p := range s.Pauses {
		if p.Match != "" {
			all = append(all, notice{"warn", "Removals are paused:", fmt.Sprintf("%s, by %s: %s", p.Match, p.By, p.Reason), "until", d.At(p.Until)})
		}
	}
	if len(s.Holds) > 0 && s.Backlog > 0 {
		all = append(all, notice{Level: "warn", Title: "Due and not removed: " + count(s.Backlog)})
	}
	return all
}

// count formats a number with a comma between thousands.
func count(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}
