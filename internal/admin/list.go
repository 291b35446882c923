package admin

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/bmatcuk/doublestar/v4"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Filter selects locks. The zero value selects all.
type Filter struct {
	// Query has no After, and of the zero Limit all locks. OnlySilent and Sort stand for Silent and ByUrgency.
	api.Query
	// silent, if it is not nil, are the only locks to select, unless they were renewed since.
	silent map[string]api.Lock
	// Sort is one of Orders; "" means name.
	Sort string
}

// Validate returns an error for a filter that cannot match anything.
func (f Filter) Validate() error {
	for _, s := range f.States {
		if !slices.Contains(api.States(), s) {
			return fmt.Errorf("--state: must be one of %s, not %q", strings.Join(api.States(), ", "), s)
		}
	}
	if !doublestar.ValidatePattern(f.Match) {
		return fmt.Errorf("--match: %q is not a valid pattern", f.Match)
	}
	if f.Sort != "" && !slices.Contains(Orders(), f.Sort) {
		return fmt.Errorf("--sort: must be one of %s, not %q", strings.Join(Orders(), ", "), f.Sort)
	}
	if f.Limit < 0 {
		return fmt.Errorf("--limit: must be at least 0, not %d", f.Limit)
	}
	return nil
}

func (f Filter) wants(l *protocol.Lock, now instant) bool {
	seen, found := f.silent[l.Name]
	silent := found && seen.Token == l.Token && seen.UUID == l.UUID() && seen.AutoUnlockAt.Equal(l.AutoUnlockAt().Time())
	return f.Matches(l, l.State(now.of(l))) && (f.silent == nil || silent)
}

// Listing is the result of List: locks in the order of the filter.
type Listing struct {
	// At is the time at which the states are evaluated, by the clocks of the holders as far as these are known.
	// Revision is that of etcd at which the locks were read.
	At       time.Time
	Revision int64
	// Prefix is the prefix of all locks.
	Prefix string
	// Total counts all locks, Matched those that match the filter apart from its limit.
	Total, Matched int
	// Uncounted is why the waiters of some locks are not known; nil if they are.
	Uncounted error

	waiters *waiters.Waiters
	locks   []protocol.Lock
	at      instant
	// explained are the locks as a daemon showed them, by name; nil if none was asked.
	explained map[string]api.Lock
}

// Locks returns the sequence of the locks, which can be read several times. It converts
// one lock at a time, since there may be very many.
func (l *Listing) Locks() iter.Seq[api.Lock] {
	return func(yield func(api.Lock) bool) {
		for i := range l.locks {
			lock := l.explain(api.NewLock(&l.locks[i], l.At, l.at.ahead[l.locks[i].Name]))
			if lock.Waiters = l.waiters.Count(l.locks[i].Name); !yield(lock) {
				return
			}
		}
	}
}

// Len returns the number of locks in Locks.
func (l *Listing) Len() int { return len(l.locks) }

// List reads all locks at one revision and returns those that match the filter.
func (a *Admin) List(ctx context.Context, f Filter) (*Listing, error) {
	at := a.instant()
	l := &Listing{At: at.Time, Prefix: a.config.Prefix, at: at}
	revision, err := scan.List(ctx, a.client.KV, a.layout, a.config.Etcd.RequestTimeout, func(part []protocol.Lock) error {
		l.Total += len(part)
		for i := range part {
			a.note(at, &part[i], 0, false)
			if f.wants(&part[i], at) {
				l.locks = append(l.locks, part[i])
			}
		}
		return nil
	})
	if err != nil {
		return nil, a.failed(ctx, err, etcd.Read)
	}
	l.Revision, l.Matched = revision, len(l.locks)
	l.waiters, l.Uncounted = a.tickets(ctx)
	compare := a.compareBy(f.Sort, at)
	slices.SortFunc(l.locks, func(a, b protocol.Lock) int { return compare(&a, &b) })
	if f.Limit > 0 && len(l.locks) > f.Limit {
		l.locks = slices.Clone(l.locks[:f.Limit])
	}
	return l, nil
}

// tickets returns those that there are or, on error, some of them.
func (a *Admin) tickets(ctx context.Context) (*waiters.Waiters, error) {
	read, err := waiters.Read(ctx, a.client.KV, a.config.WaitersKeys(), a.config.Etcd.RequestTimeout)
	return read, a.failedOn(ctx, err, etcd.Read, a.config.WaitersKeys())
}

// Deadlocks returns the deadlocks that etcd shows at one revision, with the first auto_unlock_at of their locks, and where the
// first lock of each flow was taken.
func (a *Admin) Deadlocks(ctx context.Context) ([]api.Deadlock, error) {
	found, err := waiters.ReadDeadlocks(ctx, a.client.KV, a.layout, a.config.WaitersKeys(), a.config.Etcd.RequestTimeout)
	if err != nil {
		return nil, a.failedOn(ctx, err, etcd.Read, a.config.WaitersKeys())
	}
	for i := range found {
		for j := range found[i].Flows {
			f := &found[i].Flows[j]
			for _, lock := range f.Held {
				held, err := a.store.ReadOne(ctx, lock) // else it was released just now
				if due := held.AutoUnlockAt().Time(); err == nil && !due.IsZero() && (found[i].Due.IsZero() || due.Before(found[i].Due)) {
					found[i].Due = due
				}
				fields, _ := held.Shown()
				for _, field := range fields {
					if field.Name == protocol.FieldBacktrace.String() && f.Line == "" {
						f.Line, _, _ = strings.Cut(field.Value, "\n")
					}
				}
			}
		}
	}
	return found, nil
}

// Orders returns the names of the orders of locks: those of columns, and urgency.
func Orders() []string {
	return []string{"name", "urgency", "hostname", "owner", "held", "alert", "unlock"}
}

// compareBy returns the comparison of an order at now. Locks without what they are ordered by
// come last, and those that are equal in it are ordered by name.
func (a *Admin) compareBy(order string, now instant) func(a, b *protocol.Lock) int {
	by := func(_, _ *protocol.Lock) int { return 0 }
	switch order {
	case "urgency":
		rules := verdict.RulesFromConfig(a.config)
		by = func(a, b *protocol.Lock) int {
			first, at := a.Urgency(rules.Urgent(a.Name, a.State(now.of(a))))
			second, other := b.Urgency(rules.Urgent(b.Name, b.State(now.of(b))))
			return cmp.Or(cmp.Compare(first, second), compareTimes(at, other))
		}
	case "hostname":
		by = func(a, b *protocol.Lock) int { return compareTexts(a.Hostname(), b.Hostname()) }
	case "owner":
		by = func(a, b *protocol.Lock) int { return compareTexts(a.Owner(), b.Owner()) }
	case "held":
		by = func(a, b *protocol.Lock) int { return compareTimes(a.LockedAt(), b.LockedAt()) }
	case "alert":
		by = func(a, b *protocol.Lock) int { return compareTimes(a.AlertAt(), b.AlertAt()) }
	case "unlock":
		by = func(a, b *protocol.Lock) int { return compareTimes(a.AutoUnlockAt(), b.AutoUnlockAt()) }
	}
	return func(a, b *protocol.Lock) int { return cmp.Or(by(a, b), strings.Compare(a.Name, b.Name)) }
}

func compareTexts(a, b string) int {
	if a == "" || b == "" {
		return -strings.Compare(a, b)
	}
	return strings.Compare(a, b)
}

func compareTimes(a, b protocol.Timestamp) int {
	const never = protocol.Timestamp(math.MaxInt64)
	return cmp.Compare(cmp.Or(a, never), cmp.Or(b, never))
}

// ParseName parses the name of a lock on a command line: as it is, or quoted as list and
// show print names that are not safe to print. It refuses keys.
func ParseName(prefix, given string) (string, error) {
	name := terminal.Unquote(given)
	if below, whole := strings.CutPrefix(name, prefix); whole && protocol.ValidateName(below) == nil {
		return "", fmt.Errorf("%s is a key: give the name of the lock without the prefix: %s", quoted(name), quoted(below))
	}
	return name, protocol.ValidateName(name)
}

// quoted formats a name for an error.
func quoted(name string) string { return terminal.QuoteAlways(protocol.Clip([]byte(name), 200)) }

// Names returns names of locks that begin with a text, for a shell to complete: not many more than maxNames, without
// those that are not safe to print or to type. If there are more, the longest beginning that the names have in common
// is still that of all, so that a shell that continues with it leaves none out; if that takes too many requests, there
// are none.
func (a *Admin) Names(ctx context.Context, begin string) (names []string, err error) {
	const maxNames = 200
	from, end := a.config.Prefix+begin, clientv3.GetPrefixRangeEnd(a.config.Prefix+begin)
	for range 100 { // requests
		page, err := a.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(1000))
		if err != nil {
			return nil, err
		}
		more := page.More
		for i, kv := range page.Kvs {
			from = string(kv.Key) + "\x00"
			key, field, valid := a.layout.Split(kv.Key)
			name := string(key)
			if valid && protocol.ParseField(field) != protocol.FieldUnknown && strings.HasPrefix(name, begin) && typable(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
			if len(names) >= maxNames {
				more = more || i+1 < len(page.Kvs)
				break
			}
		}
		common := commonBeginning(names)
		if !more || len(names) > 0 && len(common) <= len(begin) {
			return names, nil
		}
		if len(names) > 0 { // nothing that begins so can make it shorter
			from = max(from, clientv3.GetPrefixRangeEnd(a.config.Prefix+common))
		}
	}
	return nil, nil
}

// typable reports whether a name can be typed as it is in any shell, and is not a flag.
func typable(name string) bool {
	return terminal.Quote(name) == name && !strings.HasPrefix(name, "-") && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-:+%,", r)
	})
}

func commonBeginning(names []string) (common string) {
	for i, name := range names {
		if i == 0 {
			common = name
		}
		for !strings.HasPrefix(name, common) {
			common = common[:len(common)-1]
		}
	}
	return common
}
