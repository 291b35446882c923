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
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// sayAfter is how long etcd has not answered when the client first says that it waits, and sayAgain how often
	// it does so again.
	sayAfter, sayAgain = 10 * time.Second, time.Minute
	// lookTimeout bounds the search for the cause.
	lookTimeout = 100 * time.Millisecond
	maxReason   = 1000
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
	observers observers
	mu        sync.Mutex
	said      time.Time
}

// unanswered returns the error of a request of which an attempt failed, and whose context ended.
func (o *outage) unanswered(ended, last error) error {
	if c := code(last); c != codes.Unavailable && !errors.Is(last, context.DeadlineExceeded) && !errors.Is(last, context.Canceled) {
		return fmt.Errorf("%w: %w", ended, last) // etcd has answered
	}
	return &unreachable{o.words(last), ended, last}
}

// say reports that something waits for etcd.
func (o *outage) say(last error) {
	o.mu.Lock()
	soon := time.Since(o.said) < sayAgain
	if !soon {
		o.said = time.Now()
	}
	o.mu.Unlock()
	if !soon {
		o.observers.emit(Event{Kind: EventWaiting, Err: &unreachable{o.words(last), last, last}})
	}
}

func (o *outage) words(last error) string {
	return "etcd at " + strings.Join(o.etcd.Endpoints(), ", ") + " was unreachable: " + o.cause(last)
}

// cause returns why there is no connection, in the words of the network or of TLS. A request that waits for one, as those
// of etcd's client do by default, does not learn that.
func (o *outage) cause(last error) string {
	if code(last) != codes.Unavailable {
		conn := o.etcd.ActiveConnection()
		if conn == nil || conn.GetState() != connectivity.TransientFailure {
			return "no answer"
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) // it fails at once
		defer cancel()
		_, last = etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{}, grpc.WaitForReady(false))
		if code(last) != codes.Unavailable {
			return "no answer"
		}
	}
	_, desc, found := strings.Cut(last.Error(), "connection error: desc = ") // the text of gRPC
	if !found {
		return last.Error()
	}
	quoted, _ := strconv.QuotedPrefix(desc)
	// The rest stays escaped: an attacker may have made the certificate.
	desc = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(quoted, `"`), `"`), `\"`, `"`)
	return protocol.Clip([]byte(strings.TrimPrefix(strings.TrimPrefix(desc, "transport: "), "Error while dialing: ")), maxReason)
}
