package admin

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/scan"
)

// Filter says which locks are wanted. The zero value wants all.
type Filter struct {
	// States are the names of the states wanted; none means all.
	States []string
	// Hostname is that of the owner, whole; "" means any.
	Hostname string
	// Match is a pattern for the whole name, as in a policy; "" means any.
	Match string
	// Limit is how many locks are wanted, the first in the order of their names;
	// 0 means all.
	Limit int
}

// Validate refuses what can match nothing.
func (f Filter) Validate() error {
	for _, s := range f.States {
		if !slices.Contains(api.States(), s) {
			return fmt.Errorf("--state: unknown state %q: want %s", s, strings.Join(api.States(), ", "))
		}
	}
	if !doublestar.ValidatePattern(f.Match) {
		return fmt.Errorf("--match: %q is not a valid pattern", f.Match)
	}
	if f.Limit < 0 {
		return fmt.Errorf("--limit: must be at least 0, not %d", f.Limit)
	}
	return nil
}

func (f Filter) wants(l *lock.Lock, now lock.Timestamp) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, l.State(now).String())) &&
		(f.Hostname == "" || l.Hostname() == f.Hostname) &&
		(f.Match == "" || doublestar.MatchUnvalidated(f.Match, l.Name))
}

// Listing is what List found: locks in the order of their names.
type Listing struct {
	// At is the time by which states are told, Revision the one of etcd at which all
	// was read.
	At       time.Time
	Revision int64
	// Prefix is that of all locks.
	Prefix string
	// Total counts all locks, Matched those that the filter wants but for its limit.
	Total, Matched int

	locks []lock.Lock
}

// Locks gives the locks, as often as it is asked to. They are made one by one, as
// there may be very many.
func (l *Listing) Locks() iter.Seq[api.Lock] {
	return func(yield func(api.Lock) bool) {
		for i := range l.locks {
			if !yield(api.NewLock(&l.locks[i], l.At)) {
				return
			}
		}
	}
}

// Len returns how many Locks gives.
func (l *Listing) Len() int { return len(l.locks) }

// List reads all locks at one revision.
func (a *Admin) List(ctx context.Context, f Filter) (*Listing, error) {
	l := &Listing{At: a.now().UTC(), Prefix: a.config.Prefix}
	now := lock.TimestampOf(l.At)
	revision, err := scan.List(ctx, a.client.KV, a.layout, a.config.Etcd.RequestTimeout, func(part []lock.Lock) error {
		l.Total += len(part)
		for i := range part {
			if f.wants(&part[i], now) {
				l.locks = append(l.locks, part[i])
			}
		}
		return nil
	})
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	l.Revision, l.Matched = revision, len(l.locks)
	slices.SortFunc(l.locks, func(a, b lock.Lock) int { return strings.Compare(a.Name, b.Name) })
	if f.Limit > 0 && len(l.locks) > f.Limit {
		l.locks = slices.Clone(l.locks[:f.Limit])
	}
	return l, nil
}
