package mutex

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Errors to branch on with errors.Is.
var (
	// ErrHeld is every *HeldError: another process holds the lock.
	ErrHeld = errors.New("lock is held")
	// ErrLost is every *LostError: the lock was lost while it was held.
	ErrLost = errors.New("lock is lost")
	// ErrUnlocked is the cause with which the contexts of a lock end after its Unlock.
	ErrUnlocked = errors.New("lock was released")

	// ErrForced is a reason of ErrLost: the lock was removed by another: the daemon, an
	// operator, or a process of the same identity (see Identity).
	ErrForced = errors.New("removed by force")
	// ErrTaken is a reason of ErrLost: another process holds the lock.
	ErrTaken = errors.New("taken by another")
	// ErrDeadline is a reason of ErrLost: the lock was not renewed in time.
	ErrDeadline = errors.New("not renewed in time")
	// ErrUnreachable is a reason of ErrLost: no renewal got through to etcd in time. It is also an error of each call
	// that etcd did not answer, or whose login it refused, which says why.
	ErrUnreachable = errors.New("etcd was unreachable")
	// ErrRestored is a reason of ErrLost: etcd was restored from a backup that is older than the lock, or
	// as another cluster. Others may have the lock by what they knew before.
	ErrRestored = errors.New("etcd was restored")
	// ErrNoSpace is a reason of ErrLost, and an error of Lock: the database of etcd is full.
	ErrNoSpace = errors.New("etcd is out of space")
)

var errMaxHold = errors.New("the maximum hold was reached")

// Holder is what a lock says about the process that holds it. These are claims of that
// process. A field that it did not write is empty or zero.
type Holder struct {
	UUID, Hostname, PID, Owner, Purpose, Status string
	// LockedAt, AlertAt, AutoUnlockAt and AliveAt (the last renewal) are times of the
	// holder's clock.
	LockedAt, AlertAt, AutoUnlockAt, AliveAt time.Time
	// Token is the holder's fencing token.
	Token int64

	identity string
}

// String describes the holder in one line, for logs and for people.
func (h Holder) String() string {
	var b strings.Builder
	add := func(format, v string) {
		if v != "" {
			fmt.Fprintf(&b, format, protocol.Clip([]byte(v), 200))
		}
	}
	if h.Owner+h.Hostname+h.PID == "" {
		add("uuid %q", h.UUID)
	}
	add("%q", h.Owner)
	add(" on %q", h.Hostname)
	add(" pid %q", h.PID)
	for _, t := range []struct {
		format string
		at     time.Time
	}{{" since %s", h.LockedAt}, {" until %s", h.AutoUnlockAt}} {
		if !t.at.IsZero() {
			fmt.Fprintf(&b, t.format, t.at.Format(time.RFC3339))
		}
	}
	add(" for %q", h.Purpose)
	add(" (%q)", h.Status)
	return strings.TrimSpace(b.String())
}

// HeldError says that another process holds a lock. errors.Is(err, ErrHeld) is true, and so
// is errors.Is(err, context.DeadlineExceeded) or errors.Is(err, context.Canceled) if Lock
// waited until its context ended.
type HeldError struct {
	Name string
	// Slots is what the option of the lock said. Then Holder has one of them.
	Slots  int
	Holder Holder
	// Err is why the wait ended, or nil if there was none.
	Err error
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("lock %q is held by %s", protocol.Clip([]byte(e.Name), 200), e.Holder)
	switch {
	case e.Holder.UUID == "":
		text = fmt.Sprintf("lock %q has other waiters", protocol.Clip([]byte(e.Name), 200))
	case e.Slots > 1:
		text = fmt.Sprintf("the %d slots of %q are held, one of them by %s", e.Slots, protocol.Clip([]byte(e.Name), 200), e.Holder)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func (e *HeldError) Unwrap() error { return e.Err }

// LostError says that a lock was lost, and why. errors.Is(err, ErrLost) is true, and so is
// errors.Is(err, Reason).
type LostError struct {
	Name, UUID string
	// Reason is ErrForced, ErrTaken, ErrDeadline, ErrUnreachable, ErrRestored or ErrNoSpace.
	Reason error
	// Holder is the process that has the lock, if Reason is ErrTaken: its UUID and Token, and
	// the rest if it is known.
	Holder Holder
	// Err is the last error of a renewal, or nil.
	Err error

	explanation *explanation
}

// Error implements error. The text has what is known of the removal by now: see Removal.
func (e *LostError) Error() string {
	text := fmt.Sprintf("lock %q is lost", protocol.Clip([]byte(e.Name), 200))
	if !errors.Is(e.Err, e.Reason) { // which says it
		text += ": " + e.Reason.Error()
	}
	if errors.Is(e.Reason, ErrTaken) {
		text += ": " + e.Holder.String()
	}
	switch r := e.known(); {
	case r != nil && errors.Is(e.Reason, ErrForced): // which says that it was removed
		text += " " + r.String()
	case r != nil:
		text += ": removed " + r.String()
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Err}
}

// several are errors of which the text shows the first.
type several []error

func (s several) Error() string   { return fmt.Sprintf("%v (and %d others)", s[0], len(s)-1) }
func (s several) Unwrap() []error { return s }

func joined(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return several(errs)
}

// kind says what an error of a transaction means.
type kind int

const (
	ambiguous kind = iota // it may have been committed, or may be after a repetition
	tooBig                // etcd refused the size or the number of operations
	noSpace
	refused
)

func classify(err error) kind {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return noSpace
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return tooBig
	case errors.Is(err, rpctypes.ErrTooManyRequests), errors.Is(err, rpctypes.ErrAuthOldRevision),
		errors.Is(err, context.DeadlineExceeded):
		return ambiguous
	}
	switch code(err) {
	case codes.ResourceExhausted:
		return tooBig
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented, codes.OutOfRange:
		return refused
	}
	return ambiguous
}

func code(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}

const (
	// sayAfter is how long etcd has not answered when the client first says that it waits, and sayAgain how often
	// it does so again.
	sayAfter, sayAgain = 10 * time.Second, time.Minute
	maxReason          = 1000
)

// unreachable is the error of a request that etcd did not answer until its context ended.
type unreachable struct {
	text string
	// ended is the cause of the context, last the error of the last attempt.
	ended, last error
}

func (e *unreachable) Error() string   { return e.text }
func (e *unreachable) Unwrap() []error { return []error{ErrUnreachable, e.ended, e.last} }

// outage says what is wrong with the connection of a client.
type outage struct {
	etcd      *clientv3.Client
	own       bool // its watcher is that of etcd's client, and there may be others
	observers observers
	mu        sync.Mutex
	said      time.Time // that something waits for etcd
	loggedIn  time.Time // again
}

// unanswered returns the error of a request of which an attempt failed, and whose context ended.
func (o *outage) unanswered(ended, last error) error {
	if c := code(last); c != codes.Unavailable && !errors.Is(last, context.DeadlineExceeded) && !errors.Is(last, context.Canceled) {
		return fmt.Errorf("%w: %w", ended, last) // etcd has answered
	}
	return &unreachable{o.words(last), ended, last}
}

// refused returns the error of an attempt, with what errors.Is of a full etcd and of a refused login reports.
func (o *outage) refused(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w (%w)", ErrNoSpace, err)
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty):
		return &unreachable{o.at() + " refused the login: " + err.Error(), err, err}
	}
	return err
}

// say reports that something waits for etcd.
func (o *outage) say(last error) {
	if o.again(&o.said) {
		o.observers.emit(Event{Kind: EventWaiting, Err: &unreachable{o.words(last), last, last}})
	}
}

// again reports whether it is time to do something again, and that it is done.
func (o *outage) again(last *time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(*last) < sayAgain {
		return false
	}
	*last = time.Now()
	return true
}

// login has etcd's client log in again after an attempt without an answer: after a restore, etcd neither answers nor refuses
// requests with a simple token of before, until its raft log is as long again. The client logs in for the stream of a watch,
// here of a key that may be read. It does so rarely, as etcd may be slow, and a login costs it CPU time.
func (o *outage) login(ctx context.Context, timeout time.Duration, key string) {
	if o.etcd.Username == "" || key == "" || ctx.Err() != nil || !o.again(&o.loggedIn) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(timeout, longestPause))
	defer cancel()
	watcher, end := o.watcher() // with which a stream ends that is not open yet
	defer func() { go end() }()
	<-watcher.Watch(ctx, key, clientv3.WithCreatedNotify())
}

// watcher returns a watcher of its own where there may be one, and what ends it with its stream.
func (o *outage) watcher() (w clientv3.Watcher, end func()) {
	if !o.own {
		return o.etcd.Watcher, func() {}
	}
	w = clientv3.NewWatcher(o.etcd)
	return w, func() { _ = w.Close() }
}

func (o *outage) at() string { return "etcd at " + strings.Join(o.etcd.Endpoints(), ", ") }

func (o *outage) words(last error) string { return o.at() + " was unreachable: " + o.cause(last) }

// cause returns why there is no connection, in the words of the network or of TLS. A request that waits for one, as those
// of etcd's client do by default, does not learn that.
func (o *outage) cause(last error) string {
	if code(last) != codes.Unavailable {
		if conn := o.etcd.ActiveConnection(); conn != nil && conn.GetState() == connectivity.TransientFailure {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond) // it fails at once
			defer cancel()
			_, last = etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{}, grpc.WaitForReady(false))
		}
		if code(last) != codes.Unavailable {
			return "no answer"
		}
	}
	_, desc, found := strings.Cut(last.Error(), "connection error: desc = ") // the text of gRPC
	if !found {
		return status.Convert(last).Message()
	}
	quoted, _ := strconv.QuotedPrefix(desc)
	// The rest stays escaped: an attacker may have made the certificate.
	desc = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(quoted, `"`), `"`), `\"`, `"`)
	desc = strings.TrimPrefix(strings.TrimPrefix(desc, "transport: "), "Error while dialing: ")
	switch preface := strings.HasPrefix(desc, "error reading server preface: "); {
	case preface && strings.HasSuffix(desc, "use of closed network connection"): // by gRPC, after it has waited
		return "no answer"
	case preface && !strings.Contains(desc, "tls: "):
		desc += ": etcd may require TLS, or a client certificate"
	case desc == "authentication handshake failed: EOF":
		desc += ": etcd may not use TLS"
	}
	return protocol.Clip([]byte(desc), maxReason)
}
