package page

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Lock is the page /locks/NAME, where the links of alerts lead, also after the lock is gone.
type Lock struct {
	Name   string
	Status api.Status
	// Detail is nil if there is no such lock. If Unread says why it cannot be read from etcd,
	// Detail has no fields and is what the watch showed last, and nil if it did not show it.
	Detail *api.LockDetail
	Unread string
	// Waiters are those who wait for it.
	Waiters api.WaiterList
	// Forced are the recent forced unlocks of this name.
	Forced []api.Forced
	// History is nil if it was not read; NoHistory says why.
	History   *History
	NoHistory string
	// Unlock reports whether locks can be removed from the page: by User, unless NoUser says why not.
	Unlock       bool
	User, NoUser string
}

func (Lock) template() string { return "lock" }

// Gone reports whether there is no such lock, for certain.
func (l Lock) Gone() bool { return l.Detail == nil && l.Unread == "" }

// Dashed reports whether a command would take the name for a flag.
func (l Lock) Dashed() bool { return strings.HasPrefix(l.Name, "-") }

// Pattern is the pattern of a pause that matches only this name; empty if a command cannot have it as it is.
func (l Lock) Pattern() string {
	if terminal.Quote(l.Name) != l.Name {
		return ""
	}
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "{", `\{`, "}", `\}`).Replace(l.Name)
}

// Version changes if the lock is taken or removed, with what is known of its removals, and with the first stack of its
// holder, for which the page has no place before: then everything on the page is outdated.
func (l Lock) Version() string {
	var token, removed int64
	uuid, stack := "", false
	if l.Detail != nil {
		token, uuid, stack = l.Detail.Token, l.Detail.UUID, field(l.Detail, "stack") != nil
	}
	if len(l.Forced) > 0 {
		removed = l.Forced[0].At.UnixNano()
	}
	return fmt.Sprintf("%d-%d-%t-%t-%s", token, removed, l.Gone(), stack, uuid)
}

// trace is a field that has one line for each call.
type trace struct{ Title, ID string }

func traces() []trace {
	return []trace{{"Backtrace of the acquisition", "backtrace"}, {"Stack when alert_at passed, or when asked", "stack"}}
}

func field(d *api.LockDetail, name string) *value {
	for _, f := range d.Fields {
		if f.Name == name && f.Value != "" {
			return newValue(f)
		}
	}
	return nil
}

// value is a value that may be long.
type value struct {
	Text, First string
	Lines       int
	Long        bool
	// Bytes is the size in etcd if the text was truncated.
	Bytes int
}

func newValue(f api.Field) *value {
	v := value{Text: terminal.Text(f.Value), Bytes: f.TruncatedFrom}
	lines := strings.TrimRight(v.Text, "\n")
	v.First, _, _ = strings.Cut(lines, "\n")
	v.First = terminal.Truncate(v.First, 80)
	v.Lines = strings.Count(lines, "\n") + 1
	v.Long = v.Lines > 1 || len(v.Text) > 200
	return &v
}

// why says why a lock was removed, as far as this replica knows; empty if a person gave no reason.
func why(f api.Forced) string {
	if f.Trigger == verdict.Manual {
		return f.Reason
	}
	return cmp.Or(map[verdict.Trigger]string{
		verdict.Expiry: "its holder missed its deadline", verdict.Orphan: "leftover fields without a holder",
		verdict.Presumed: "etcd did not answer; its holder released it in the same moment, or missed its deadline",
	}[f.Trigger], "it was past its deadline; by whom is not known")
}

// shell quotes an argument for a POSIX shell. The commands read text that was escaped.
func shell(s string) string {
	s = terminal.Quote(s)
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_./:@%+=,-", r)
	}
	if strings.TrimLeftFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Forced is the page /forced.
type Forced struct {
	Status api.Status
	Forced []api.Forced
	// Name is the only name shown; empty if all are. Limit is how many were asked for at most.
	Name  string
	Limit int
}

func (Forced) template() string { return "forced" }

// Full reports whether there may be more.
func (f Forced) Full() bool { return len(f.Forced) >= f.Limit }

// input is one key of a verdict: a value or a time. The template meaning says what it is.
type input struct {
	Key, Value string
	Time       moment
}

// inputs returns what a verdict was decided on, in the keys of the log.
func inputs(v slog.LogValuer) (all []input) {
	for _, a := range v.LogValue().Group() {
		in := input{Key: a.Key, Value: terminal.Text(a.Value.String())}
		switch t := a.Value.Any().(type) {
		case time.Time:
			in.Time.t, in.Value = t, ""
		case time.Duration:
			in.Value = t.Round(time.Millisecond).String()
		}
		all = append(all, in)
	}
	return all
}
