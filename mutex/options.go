package mutex

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Option is a setting of New, which makes it the default of all locks of the client, of a
// lock, or of Alive. A setting that makes no sense where it is given is refused there.
type Option struct {
	name string
	in   scope
	set  func(*settings) error
}

// option is one that makes sense with any value.
func option(name string, in scope, set func(*settings)) Option {
	return Option{name, in, func(s *settings) error { set(s); return nil }}
}

type scope uint8

const (
	inNew scope = 1 << iota
	inLock
	inAlive
)

func (s scope) String() string {
	return map[scope]string{inNew: "New", inLock: "a lock", inAlive: "Alive"}[s]
}

// The defaults.
const (
	defaultPrefix   = "/mutexes/"
	defaultPatience = 2 * time.Minute
	defaultExpect   = time.Minute
)

const (
	minPatience = time.Second
	maxDuration = 366 * 24 * time.Hour // of what deadlines are computed from
	maxText     = 4 << 10              // bytes of owner, purpose, status, backtrace and stack
	maxValue    = 64 << 10
	maxMetadata = 32
	maxField    = 64
)

// fieldIdentity is a field of this package's own, which other clients carry as any other.
const fieldIdentity = "identity"

type settings struct {
	prefix           string
	audit, ask       string
	waiters          string
	expect, patience time.Duration // 0 until resolve
	owner, purpose   string
	status           string
	onAsk            func() string
	observers        observers
	metadata         map[string]string
	trace            bool
	keep             time.Duration
	slots            int           // 0 for a lock
	wait             time.Duration // negative: without limit
	identity         string
}

func defaults() settings {
	s := settings{prefix: defaultPrefix, trace: true, wait: -1, observers: observers{Log(nil)}, metadata: map[string]string{}}
	if path, err := os.Executable(); err == nil {
		s.owner = filepath.Base(path)
	}
	return s
}

// Prefix is the prefix of the keys of all locks of a client. It ends with a slash. The
// default is /mutexes/.
func Prefix(prefix string) Option {
	return option("Prefix", inNew, func(s *settings) { s.prefix = prefix })
}

// AuditPrefix is the prefix of the records of removals, as audit_prefix of the daemon. After a loss its record is
// read there, to say who removed the lock, when and why: see LostError.Removal. That needs the right to read it;
// without, the rest works. The default is /unlocker/audit followed by the prefix of the locks.
func AuditPrefix(prefix string) Option {
	return prefixOption("AuditPrefix", prefix, func(s *settings) *string { return &s.audit })
}

// AskPrefix is the prefix of the questions to holders, as ask_prefix of the daemon. A lock that is held for longer
// than 100 ms is asked there by unlocker ask, and answers with its stack (see Backtrace) and its status (see OnAsk), at
// most every five seconds. That needs the right to read there: without it, a warning says so once (see Observe), and the
// rest works. The default is /unlocker/ask followed by the prefix of the locks.
func AskPrefix(prefix string) Option {
	return prefixOption("AskPrefix", prefix, func(s *settings) *string { return &s.ask })
}

// WaitersPrefix is the prefix of the tickets of waiters, as waiters_prefix of the daemon: Lock puts one there, with a lease
// of ten seconds, to get the lock in its turn. That needs the right to read and write there: without it, a warning says so
// once (see Observe), and there is no order. The default is /unlocker/waiters followed by the prefix of the locks.
func WaitersPrefix(prefix string) Option {
	return prefixOption("WaitersPrefix", prefix, func(s *settings) *string { return &s.waiters })
}

func prefixOption(name, prefix string, place func(*settings) *string) Option {
	return Option{name, inNew, func(s *settings) error {
		if *place(s) = strings.TrimSuffix(prefix, "/") + "/"; prefix == "" {
			return errors.New("is empty")
		}
		return nil
	}}
}

// OnAsk is called when the holder is asked (see AskPrefix): what it returns is the status of the answer, instead of
// the one that Status has set. It is called in a goroutine of its own, once at a time, and nothing waits for it but the answer.
func OnAsk(status func() string) Option {
	return option("OnAsk", inNew|inLock, func(s *settings) { s.onAsk = status })
}

// Expect is how long the work is expected to take, from the lock or, without KeepAlive, from
// the last Alive on. After that the lock is overdue: an alert fires, and the lock's stack is
// written (see Backtrace). The default is a minute, or half the patience if that is less. It is
// at most 366 days.
func Expect(d time.Duration) Option {
	return durationOption("Expect", inNew|inLock|inAlive, d, 1, maxDuration, func(s *settings) *time.Duration { return &s.expect })
}

// Patience (what others call the TTL) is how long the lock stays without a sign of life. After that
// it is lost, and may be removed and taken by another. It is at least a second, and at most 366 days.
//
// Without KeepAlive it is the longest time between two calls of Alive: the default is two minutes,
// or twice what Expect says if that is more. With KeepAlive it does not limit the work: it is how long
// an outage the lock survives, and how long others wait after a crash, and the default is two minutes
// whatever Expect says. Daemons that restart wait up to the patience, at most 5 minutes, for the next
// sign of life.
func Patience(d time.Duration) Option {
	return durationOption("Patience", inNew|inLock|inAlive, d, minPatience, maxDuration, func(s *settings) *time.Duration { return &s.patience })
}

// Owner is the name of the service that locks. The default is the name of the executable.
func Owner(name string) Option {
	return option("Owner", inNew|inLock, func(s *settings) { s.owner = protocol.Clip([]byte(name), maxText) })
}

// Purpose describes the lock for waiters and for alerts.
func Purpose(text string) Option {
	return option("Purpose", inNew|inLock, func(s *settings) { s.purpose = protocol.Clip([]byte(text), maxText) })
}

// Metadata is a further field of the lock, such as a ticket or a link. It may be given
// several times. The key must not be a field of the protocol or contain a slash.
func Metadata(key, value string) Option {
	return Option{"Metadata", inNew | inLock, func(s *settings) error {
		switch {
		case len(key) > maxField || strings.Contains(key, "/") || protocol.ValidateName(key) != nil:
			return fmt.Errorf("%q is not the name of a field", protocol.Clip([]byte(key), maxField))
		case key == fieldIdentity || protocol.ParseField([]byte(key)) != protocol.FieldUnknown:
			return fmt.Errorf("%q is a field of the protocol", key)
		case len(value) > maxValue:
			return fmt.Errorf("%q has more than %d bytes", key, maxValue)
		}
		s.metadata[key] = value
		if len(s.metadata) > maxMetadata {
			return fmt.Errorf("more than %d fields", maxMetadata)
		}
		return nil
	}}
}

// Backtrace says whether the lock carries the stack of the caller at the call, and from its
// alert_at on that of the same goroutine at that time, so that whoever is alerted sees the
// line that hangs. Both have functions and lines, no values. The default is true.
func Backtrace(on bool) Option {
	return option("Backtrace", inNew|inLock, func(s *settings) { s.trace = on })
}

// Forever is the maximum hold of a KeepAlive without one.
const Forever time.Duration = math.MaxInt64

// KeepAlive renews the lock in the background, every third of its patience, until it has
// been held for maxHold, which may be Forever. It does not put off the alert of Expect. Without
// KeepAlive the holder calls Alive, which proves more: not only that the process lives, but that
// its work proceeds.
func KeepAlive(maxHold time.Duration) Option {
	return durationOption("KeepAlive", inNew|inLock, maxHold, 1, Forever, func(s *settings) *time.Duration { return &s.keep })
}

// Wait limits how long Lock and WithLock wait, beside their context. With 0 they do not wait.
func Wait(d time.Duration) Option {
	return durationOption("Wait", inNew|inLock, d, 0, Forever, func(s *settings) *time.Duration { return &s.wait })
}

// Slots lets up to n processes hold a name at once, 1 to 1000. Each of them has a slot, which is a lock of its own: with
// the name "a" it is one of "a/0" to "a/<n-1>" (see Lock.Name), with its own alert, removal and fencing token. A name is
// taken either with Slots or without. All should give the same n: one that gives less uses only the slots below, and may
// be passed over by those that give more. To take a slot costs one request more. There is no Identity with Slots.
func Slots(n int) Option {
	return Option{"Slots", inLock, func(s *settings) error {
		if s.slots = n; n < 1 || n > protocol.MaxSlots {
			return fmt.Errorf("%d is not 1 to %d", n, protocol.MaxSlots)
		}
		return nil
	}}
}

// Identity allows to remove, and take again, a lock whose holder had the same identity: the
// process itself before it crashed, which otherwise would wait for its own deadline. No two
// processes that live at the same time may have the same identity, since each would take
// the other's locks: use the name of a pod of a StatefulSet, not that of a Deployment.
func Identity(id string) Option {
	return Option{"Identity", inNew | inLock, func(s *settings) error {
		if s.identity = id; id == "" || len(id) > maxText {
			return fmt.Errorf("must have 1 to %d bytes", maxText)
		}
		return nil
	}}
}

// Status says how far the work is, such as "invoice 512 of 10,000".
func Status(text string) Option {
	return option("Status", inAlive, func(s *settings) { s.status = protocol.Clip([]byte(text), maxText) })
}

func durationOption(name string, in scope, d, least, most time.Duration, place func(*settings) *time.Duration) Option {
	return Option{name, in, func(s *settings) error {
		switch *place(s) = d; {
		case d < min(least, 1):
			return fmt.Errorf("%v is not positive", d)
		case d < least:
			return fmt.Errorf("%v is less than %v", d, least)
		case d > most:
			return fmt.Errorf("%v is more than %v", d, most)
		}
		return nil
	}}
}

// with returns the settings with the options applied.
func (s settings) with(in scope, opts []Option) (settings, error) {
	s.metadata = maps.Clone(s.metadata)
	for _, o := range opts {
		if o.in&in == 0 {
			return s, fmt.Errorf("mutex: %s is not an option of %s", o.name, in)
		}
		if err := o.set(&s); err != nil {
			return s, fmt.Errorf("mutex: %s: %w", o.name, err)
		}
	}
	if _, err := s.resolve(); err != nil {
		return s, fmt.Errorf("mutex: %w", err)
	}
	return s, nil
}

// resolve returns the settings with the durations that were not given.
func (s settings) resolve() (settings, error) {
	if s.patience == 0 {
		s.patience = max(defaultPatience, 2*s.expect)
		if s.keep != 0 {
			s.patience = defaultPatience
		}
	}
	if s.expect == 0 {
		s.expect = min(defaultExpect, s.patience/2)
	}
	if s.expect > s.patience && s.keep == 0 {
		return s, errors.New("Expect is more than Patience, which needs KeepAlive")
	}
	if s.slots > 0 && s.identity != "" {
		return s, errors.New("Slots and Identity exclude each other")
	}
	return s, nil
}

// sorted returns the fields in the order of their keys.
func sorted(fields map[string]string) []string { return slices.Sorted(maps.Keys(fields)) }
