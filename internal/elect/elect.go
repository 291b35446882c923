// Package elect elects one of several replicas leader, with etcd's own session and election.
// Leadership is a head start: the leader acts first, the others act a little later, and the
// transaction they act with is safe whoever sends it.
//
// It guarantees:
//   - A replica leads only after a read has shown the oldest key of the election on its lease. The
//     read is repeated three times in a TTL; if it fails or shows another key, leadership ends.
//   - Run ends at most two seconds after its context, and for no other reason. It gives the key
//     up, so that the next replica leads at once.
//   - A role with readwrite on the election's keys, [key/, key0), suffices.
//
// It does not guarantee that only one replica leads: one that is cut off from etcd, or was
// suspended, may notice up to a TTL or a request timeout after another one was elected. Nor that
// any leads: etcd may be away, without a quorum, or out of space, where it grants no lease. Nor
// that elections are separate where one's key extends the other's, as key/a does key.
package elect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/message"
)

const (
	// minTTL is the shortest lease etcd grants with its default election timeout.
	minTTL = 2 * time.Second
	// The pause after a failed attempt doubles from minBackoff to maxBackoff, and is
	// minBackoff again after an attempt that lasted longer than a TTL.
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
	// warnInterval is the minimum time between two warnings for one reason.
	warnInterval = time.Minute
)

// Options are what an Elector needs; all are required.
type Options struct {
	// Client bounds unary calls that have no deadline, as internal/etcd's does: Campaign's have none.
	Client *clientv3.Client
	// Key names the election: its keys are <Key>/<lease ID in hex>. A trailing slash is ignored.
	Key string
	// TTL is when a leader that vanished is replaced: whole seconds, at least two.
	TTL time.Duration
	// Identity is the value of this replica's key, for example its hostname and process ID.
	Identity string
	// RequestTimeout bounds a grant and a read.
	RequestTimeout time.Duration
	// Explain adds to an error of etcd which permission is missing.
	Explain func(error) error
	Logger  *slog.Logger
}

// Elector takes part in an election while it runs.
type Elector struct {
	Options
	// warned is when each reason was last logged as a warning. Only Run uses it.
	warned map[string]time.Time

	mu     sync.Mutex
	status Status
}

// Status is what an Elector knows of the election.
type Status struct {
	// Leader reports whether this replica leads.
	Leader bool
	// Since is when this replica began to lead, zero while it does not.
	Since time.Time
	// Holder is the identity of the leader, read at most a third of a TTL ago while etcd answers,
	// or "" if it is unknown.
	Holder string
}

// New returns an Elector that takes part once Run is called. It makes no calls to etcd.
func New(o Options) (*Elector, error) {
	o.Key = strings.TrimSuffix(o.Key, "/")
	switch {
	case o.Client == nil, o.Explain == nil, o.Logger == nil, o.Key == "", o.Identity == "":
		return nil, errors.New("elect: Client, Explain, Logger, Key and Identity are required")
	case o.TTL < minTTL, o.TTL%time.Second != 0:
		return nil, fmt.Errorf("elect: TTL must be whole seconds, at least %s, not %s", minTTL, o.TTL)
	case o.RequestTimeout <= 0:
		return nil, errors.New("elect: RequestTimeout must be positive")
	}
	return &Elector{Options: o, warned: map[string]time.Time{}}, nil
}

// Leader reports whether this replica leads, as Status does. Call it again before each act.
func (e *Elector) Leader() bool { return e.Status().Leader }

// Status makes no calls to etcd and is safe for concurrent use.
func (e *Elector) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// Run takes part in the election until ctx is done, and returns nil then. It retries after any
// failure of etcd. The leader's work must end before ctx does. Run is called once.
func (e *Elector) Run(ctx context.Context) error {
	for backoff := minBackoff; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		began := time.Now()
		err := e.attempt(ctx)
		if ctx.Err() == nil {
			e.report(ctx, err)
		}
		if time.Since(began) > e.TTL {
			backoff = minBackoff
		}
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
	}
	return nil
}

// report logs why an attempt failed, as a warning once a minute for each reason.
func (e *Elector) report(ctx context.Context, err error) {
	reason, level := reasonOf(err), slog.LevelDebug
	if last, ok := e.warned[reason]; !ok || time.Since(last) >= warnInterval {
		level, e.warned[reason] = slog.LevelWarn, time.Now()
	}
	e.Logger.Log(ctx, level, message.ElectionFailed, "key", e.Key, "reason", reason, "error", e.Explain(err))
}

// reasonOf returns the gRPC code of an error, Unknown for this package's own.
func reasonOf(err error) string {
	if known := (rpctypes.EtcdError{}); errors.As(err, &known) {
		return known.Code().String()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded.String()
	}
	return status.Code(err).String()
}

// set records who leads. It logs when this replica begins to lead, and when and why it ceases.
func (e *Elector) set(holder string, leader bool, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case leader && !e.status.Leader:
		e.status.Since = time.Now()
		e.Logger.Info(message.Leading, "key", e.Key)
	case !leader && e.status.Leader:
		e.status.Since = time.Time{}
		e.Logger.Info(message.NotLeading, "key", e.Key, "reason", why)
	}
	e.status.Leader, e.status.Holder = leader, holder
}
