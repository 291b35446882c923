package mutex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// explainTimeout is for how long the record of a removal is looked for: the daemon writes it after the
// removal, usually within some milliseconds.
const explainTimeout = 2 * time.Second

// Removal is what the record in etcd says about the removal of a lock. Any client with the right to write
// records can have written it. Texts are valid UTF-8 and bounded, and not safe to print.
type Removal struct {
	// At is according to the clock of the host that removed the lock.
	At time.Time
	// Trigger is "expiry" if the daemon removed the lock after its deadline, and "manual" if a user did.
	Trigger string
	// Replica is the replica of the daemon that removed it, and Rule the one of its rules that decided when.
	Replica, Rule string
	// Who is the user that removed it, and Why what they said.
	Who, Why string
}

// String describes the removal in one line, for logs and for people.
func (r Removal) String() string {
	var b strings.Builder
	for _, part := range []struct{ format, text string }{{"by %q", r.Who}, {"by replica %q", r.Replica}, {" (trigger %q)", r.Trigger}, {", rule %q", r.Rule}, {": %q", r.Why}} {
		if part.text != "" {
			fmt.Fprintf(&b, part.format, protocol.Clip([]byte(part.text), 200))
		}
	}
	return fmt.Sprintf("%s at %s", strings.TrimSpace(b.String()), r.At.UTC().Format(time.RFC3339))
}

// explanation is what is found out about a loss after it was reported. done is closed once removal is set, or
// nothing was found. It is nil if there is no record of the loss.
type explanation struct {
	stop    context.CancelFunc
	done    chan struct{}
	removal atomic.Pointer[Removal]
}

// end ends the search, soon.
func (x *explanation) end() {
	if x != nil {
		x.stop()
	}
}

// Removal returns what the record of the removal says: which replica or user removed the lock, when, and by which
// rule. It is read in the background as soon as a loss with the Reason ErrForced or ErrTaken is known, for two seconds
// at most and until Unlock; Removal waits for that. It returns nil if there is no record, or no right to read it: see
// AuditPrefix.
func (e *LostError) Removal(ctx context.Context) *Removal {
	if e.explanation != nil {
		select {
		case <-e.explanation.done:
		case <-ctx.Done():
		}
	}
	return e.known()
}

// known returns what is known by now.
func (e *LostError) known() *Removal {
	if e.explanation == nil {
		return nil
	}
	return e.explanation.removal.Load()
}

// explain begins to read the record of the removal, if there may be one, and returns the error.
func (l *Lock) explain(e *LostError, timeout time.Duration) *LostError {
	if errors.Is(e.Reason, ErrForced) || errors.Is(e.Reason, ErrTaken) {
		ctx, stop := context.WithTimeout(context.Background(), timeout)
		found := &explanation{stop: stop, done: make(chan struct{})}
		e.explanation = found
		go func() {
			defer close(found.done)
			defer stop()
			found.removal.Store(l.removal(ctx))
		}()
	}
	return e
}

// removal reads the record until it is there. It gives up at the first error.
func (l *Lock) removal(ctx context.Context) *Removal {
	key := protocol.RecordKey(l.c.settings.audit, l.name, l.token)
	for pause := firstPause; ; pause *= 2 {
		resp, err := l.c.store.kv.Get(ctx, key)
		if err == nil && len(resp.Kvs) > 0 {
			return parseRemoval(resp.Kvs[0].Value, l.uuid)
		}
		if err != nil || rest(ctx, pause) != nil {
			return nil
		}
	}
}

// parseRemoval returns nil if the value is not a record of the removal of the uuid.
func parseRemoval(value []byte, uuid string) *Removal {
	const maxRecord = 32 << 10 // bytes
	var r struct {
		UUID, Trigger, Replica, Who, Reason string
		When                                time.Time
		Verdict                             struct{ Reason string }
	}
	if len(value) > maxRecord || json.Unmarshal(value, &r) != nil || r.UUID != uuid {
		return nil
	}
	removal := &Removal{At: r.When, Trigger: r.Trigger, Replica: r.Replica, Rule: r.Verdict.Reason, Who: r.Who, Why: r.Reason}
	for _, s := range []*string{&removal.Trigger, &removal.Replica, &removal.Rule, &removal.Who, &removal.Why} {
		*s = protocol.Clip([]byte(*s), maxText)
	}
	return removal
}
