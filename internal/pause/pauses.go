// Package pause is how a user stops the automatic removal of all locks, or of some, for a while:
// the record of a pause in etcd, and the pauses in force as a daemon follows them.
//
// Guaranteed: while a record is in etcd and synced, it is in force, whatever the clocks say. What
// cannot be read as a pause pauses all. Pauses.Unseen is not empty unless all records are known,
// as far as the watch shows.
//
// Not guaranteed: that a pause is seen before a transaction is sent. The transaction compares Pauses.Newest.
package pause

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options are the options of New.
type Options struct {
	// FollowerOptions say how to follow the records: all of them but MaxKeys, MaxSize and On.
	etcd.FollowerOptions
	// Changed is called after the pauses have changed. Nothing waits for it.
	Changed func(context.Context)
}

// Pauses are the pauses in force. All methods may be called concurrently.
type Pauses struct {
	Options
	follower *etcd.Follower
	changed  chan struct{}

	mu sync.Mutex
	// records are the pauses by their keys, and broken is what is wrong with the records that
	// cannot be read. shown are the records in a fixed order.
	records map[string]api.Pause
	broken  map[string]error
	shown   []api.Pause
}

const (
	// MaxRecords limits how many records are read. More than that pause all locks.
	MaxRecords = 1000
	maxError   = 500
)

// New returns Pauses that know nothing until Run is called.
func New(o Options) (*Pauses, error) {
	if o.Changed == nil {
		return nil, errors.New("pause: Changed is required")
	}
	p := &Pauses{Options: o, changed: make(chan struct{}, 1), records: make(map[string]api.Pause), broken: make(map[string]error)}
	p.MaxKeys, p.MaxSize, p.On = MaxRecords, maxSize+1, p.on
	var err error
	p.follower, err = etcd.NewFollower(p.FollowerOptions)
	return p, err
}

// Run follows the pauses until ctx is done, and then returns nil.
func (p *Pauses) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.follower.Run(ctx) })
	g.Go(func() error {
		for {
			select {
			case <-p.changed:
				p.Changed(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// on keeps one record, and logs it. The log may block: not those who ask for the pauses.
func (p *Pauses) on(e etcd.Event) {
	record, err := Parse(e.Key, e.Value)
	old, was := p.keep(e, record, err)
	switch {
	case e.Deleted && was:
		about := []any{"match", old.Match, "by", old.By}
		if !old.Since.IsZero() { // as in a record that a person has written
			about = append(about, "lasted", time.Since(old.Since))
		}
		p.Logger.Info(api.LogPauseEnds, about...)
	case e.Deleted:
		p.Logger.Info(api.LogPauseEnds, "key", p.named(e.Key))
	case err != nil:
		p.Logger.Warn(api.LogPauseBroken, "key", p.named(e.Key), "error", err)
	default:
		p.Logger.Info(api.LogPauseBegins, "match", record.Match, "by", record.By, "reason", record.Reason,
			"since", record.Since, "until", record.Until)
	}
}

// keep keeps one record, and returns the one that it replaces. That does not end before the new one begins.
func (p *Pauses) keep(e etcd.Event, record api.Pause, err error) (old api.Pause, was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, was = p.records[e.Key]
	delete(p.records, e.Key)
	delete(p.broken, e.Key)
	switch {
	case e.Deleted:
	case err != nil:
		p.broken[e.Key] = err
	default:
		p.records[e.Key] = record
	}
	p.shown = nil
	for _, key := range slices.Sorted(maps.Keys(p.records)) { // that of all locks is the first
		p.shown = append(p.shown, p.records[key])
	}
	select {
	case p.changed <- struct{}{}:
	default: // a call that has not begun yet
	}
	return old, was
}

// named returns a key as logs and answers show it.
func (p *Pauses) named(key string) string { return protocol.Clip([]byte(p.Prefix+key), maxError) }

// Records returns the pauses in force, that of all locks first.
func (p *Pauses) Records() []api.Pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown
}

// InForce returns Records, and those that cannot be read.
func (p *Pauses) InForce() []api.Pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.shown)
	for _, key := range slices.Sorted(maps.Keys(p.broken)) {
		all = append(all, Unreadable(p.Prefix+key))
	}
	return all
}

// Unreadable stands for a record that cannot be read, which is a pause of all locks without an end.
func Unreadable(key string) api.Pause {
	return api.Pause{Reason: "the record " + protocol.Clip([]byte(key), maxError) + " cannot be read"}
}

// For returns the pause of a glob that applies to a lock: that which ends last.
func (p *Pauses) For(name string) (last verdict.Pause) {
	for _, r := range p.Records() {
		if r.Match != "" && r.Until.After(last.Until) && doublestar.MatchUnvalidated(r.Match, name) {
			last = verdict.Pause{Until: r.Until, Words: Words(r)}
		}
	}
	return last
}

// Newest returns the revision of the newest record that For and All know, readable or not.
func (p *Pauses) Newest() int64 { return p.follower.Status().Newest }

// Matches reports whether a pause of a glob applies to a lock.
func (p *Pauses) Matches(name string) bool { return p.For(name) != verdict.Pause{} }

// All returns who paused all locks, why and until when, in words; "" if nobody did. What cannot be
// read as a pause pauses all.
func (p *Pauses) All() string {
	omitted := p.follower.Status().Omitted > 0
	p.mu.Lock()
	defer p.mu.Unlock()
	var why []string
	if r, paused := p.records[allKey]; paused {
		why = append(why, fmt.Sprintf("paused until %s %s", verdict.Instant(time.Now(), r.Until), Words(r)))
	}
	if len(p.broken) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(p.broken)))
		why = append(why, fmt.Sprintf("the record %s is not a pause that can be read (%s), so all locks are kept until it is deleted",
			p.named(first), protocol.Clip([]byte(p.broken[first].Error()), maxError)))
	}
	if omitted {
		why = append(why, fmt.Sprintf("under %s are more than %d records, or one with a very long key, so all locks are kept", p.Prefix, MaxRecords))
	}
	return strings.Join(why, ", and ")
}

// Listed reports whether the pauses were ever loaded.
func (p *Pauses) Listed() bool { return p.follower.Status().Listed }

// Unseen returns why the pauses are not synced, in words; "" if they are. Call it before All and
// For: these then know all pauses that there were at the time.
func (p *Pauses) Unseen() string {
	switch s := p.follower.Status(); {
	case s.Synced:
		return ""
	case s.Err != nil:
		return fmt.Sprintf("cannot load pauses under %s: %s", p.Prefix, protocol.Clip([]byte(s.Err.Error()), maxError))
	}
	return fmt.Sprintf("pauses under %s not loaded yet", p.Prefix)
}

const (
	allKey   = "all"
	matchKey = "match/"
)

// Key returns the key of the pause of a glob, or of all locks if it is empty, without the prefix.
func Key(match string) string {
	if match == "" {
		return allKey
	}
	return matchKey + match
}

// Limits of a record, in bytes. Longer texts are cut where they are read.
const (
	MaxReason = 500
	maxBy     = 200
	maxSize   = 8 << 10 // that of the longest texts, escaped, and some
	maxMatch  = 500
	// These limit the time that a pattern takes, of the table too: the product of the numbers of alternatives counts.
	maxCommas, maxBraces = 10, 3
)

// CheckMatch returns an error if a pattern is not valid, takes too long, or matches no name.
func CheckMatch(match string) error {
	shown := protocol.Clip([]byte(match), maxMatch)
	switch {
	case len(match) > maxMatch, strings.Count(match, ",") > maxCommas, strings.Count(match, "{") > maxBraces:
		return fmt.Errorf("the pattern %q is too long: at most %d bytes, %d commas and %d braces", shown, maxMatch, maxCommas, maxBraces)
	case match == "", !utf8.ValidString(match), !doublestar.ValidatePattern(match):
		return fmt.Errorf("%q is not a valid pattern such as deploy/**", shown)
	case strings.HasPrefix(match, "/"), strings.HasSuffix(match, "/"):
		return fmt.Errorf("%q matches no lock: names exclude the prefix and neither begin nor end with a slash", shown)
	}
	return nil
}

// Value returns the value of the key of a pause.
func Value(p api.Pause) (string, error) {
	value, err := json.Marshal(p)
	return string(value), err
}

// Parse reads the record at a key, given without the prefix.
func Parse(key string, value []byte) (api.Pause, error) {
	var r api.Pause
	if len(value) > maxSize {
		return r, errors.New("it is too long")
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, errors.New(protocol.Clip([]byte(err.Error()), maxMatch)) // it may quote the value
	}
	switch {
	case Key(r.Match) != key:
		return r, fmt.Errorf("its key is not that of its match %q", protocol.Clip([]byte(r.Match), maxMatch))
	case r.Until.Unix() <= 0:
		return r, errors.New("it has no until")
	}
	if r.Match != "" {
		if err := CheckMatch(r.Match); err != nil {
			return r, err
		}
	}
	r.By, r.Reason = protocol.Clip([]byte(r.By), maxBy), protocol.Clip([]byte(r.Reason), MaxReason)
	r.Since, r.Until = r.Since.UTC(), r.Until.UTC()
	_, err := Value(r) // the API shows it, but in UTC the year may be none that JSON has
	return r, err
}

// Words say whose pause it is and why.
func Words(r api.Pause) string {
	var match string
	if r.Match != "" {
		match = fmt.Sprintf(" for %q", r.Match)
	}
	return strings.TrimSpace(fmt.Sprintf("by %s%s: %s", r.By, match, r.Reason))
}
