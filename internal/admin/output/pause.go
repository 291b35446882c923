package output

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// Paused prints a pause that has begun.
func Paused(w io.Writer, prefix string, r pause.Record) error {
	_, err := fmt.Fprintf(w, "paused until %s: %s under %s is removed automatically\n", localAndUTC(r.Until), noLock(r.Match), terminal.Quote(prefix))
	return err
}

// Resumed prints that a pause has ended.
func Resumed(w io.Writer, prefix, match string) error {
	_, err := fmt.Fprintf(w, "resumed: %s under %s\n", locks(match), terminal.Quote(prefix))
	return err
}

// NotPaused says that there is no such pause.
func NotPaused(prefix, match string) string {
	if match == "" {
		return fmt.Sprintf("there is no pause of all locks under %s", prefix)
	}
	return fmt.Sprintf("there is no pause of the pattern %s under %s", terminal.QuoteAlways(match), prefix)
}

// Remaining prints the pauses that are in force, and the keys of records that no daemon can read.
func Remaining(w io.Writer, prefix string, remaining []pause.Record, broken []string) error {
	b := bufio.NewWriter(w)
	for _, r := range remaining {
		fmt.Fprintf(b, "still paused until %s: %s under %s; by %s: %s\n",
			localAndUTC(r.Until), locks(r.Match), terminal.Quote(prefix), terminal.Quote(r.By), terminal.Quote(r.Reason))
	}
	for _, key := range broken {
		fmt.Fprintf(b, "all locks are kept: the record %s cannot be read; if it is nothing else's, delete it with etcdctl del\n", terminal.Quote(key))
	}
	return b.Flush()
}

func noLock(match string) string {
	if match == "" {
		return "no lock"
	}
	return "no lock that matches " + terminal.QuoteAlways(match)
}

func locks(match string) string {
	if match == "" {
		return "all locks"
	}
	return "locks that match " + terminal.QuoteAlways(match)
}

// localAndUTC formats an instant in the time zone of this host and in UTC.
func localAndUTC(t time.Time) string {
	utc := terminal.Time(t)
	if local := t.Local().Format("2006-01-02 15:04:05 MST"); local != utc {
		return local + " (" + utc + ")"
	}
	return utc
}
