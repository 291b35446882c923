// Package elect elects a leader among several replicas, with the session and the election of the
// etcd client library. The leader only acts earlier than the other replicas: the transactions are
// safe whichever replica sends them.
//
// Guaranteed:
//   - A replica leads only after a read has shown that the oldest key of the election has its
//     lease. The read is repeated three times per TTL. If it fails or shows another lease,
//     leadership ends.
//   - Run ends at most two seconds after its context, and for no other reason. It then deletes its
//     key, so that the next replica leads at once.
//   - A role with readwrite on the keys of the election, [key/, key0), is sufficient.
//
// Not guaranteed:
//   - That at most one replica leads. A replica that is cut off from etcd, or was suspended, may
//     notice that another one leads only after a TTL or a request timeout.
//   - That a replica leads. etcd may be down, without a quorum, or out of space, when it grants no
//     leases.
//   - That elections are separate if the key of one is a prefix of the other, as key and key/a.
package elect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// Options are the options of New; all are required.
type Options struct {
	// Client must give a deadline to unary calls without one, as that of internal/etcd does:
	// those of Campaign have none.
	Client *clientv3.Client
	// Key is the name of the election: its keys are <Key>/<lease ID in hex>. A trailing slash is
	// ignored.
	Key string
	// TTL is how long until a leader that vanished is replaced: whole seconds, at least two.
	TTL time.Duration
	// Identity is the value of the key of this replica, for example its hostname and process ID.
	Identity string
	// RequestTimeout limits a grant and a read.
	RequestTimeout time.Duration
	// Explain adds the missing permission to an error of etcd.
	Explain func(error) error
	Logger  *slog.Logger
}

// Elector takes part in an election while it runs.
type Elector struct {
	Options
	levels etcd.Levels // of reasons; only Run uses it

	mu     sync.Mutex
	status Status
}

// Status is what an Elector knows of the election.
type Status struct {
	// Leader reports whether this replica leads.
	Leader bool
	// Holder is the identity of the leader, or "" if it is unknown. While etcd answers, it was read
	// at most a third of a TTL ago.
	Holder string
}

// New returns an Elector that takes part once Run is called. It makes no calls to etcd.
func New(o Options) (*Elector, error) {
	o.Key = strings.TrimSuffix(o.Key, "/")
	switch {
	case o.Client == nil, o.Explain == nil, o.Logger == nil, o.Key == "", o.Identity == "":
		return nil, errors.New("elect: Client, Explain, Logger, Key and Identity are required")
	case o.TTL <= 0, o.RequestTimeout <= 0:
		return nil, errors.New("elect: TTL and RequestTimeout must be positive")
	}
	return &Elector{Options: o, levels: etcd.Levels{}}, nil
}

// Leader reports whether this replica leads. Call it again before each action.
func (e *Elector) Leader() bool { return e.Status().Leader }

// Status returns the present status. It makes no calls to etcd, and is safe for concurrent use.
func (e *Elector) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// Run takes part in the election until ctx is done, and then returns nil. It retries after any
// failure of etcd. What only the leader does must end before ctx does. Run must be called once.
func (e *Elector) Run(ctx context.Context) error {
	for failures := 1; ; failures++ {
		began := time.Now()
		err := e.attempt(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the failure of an attempt that was stopped
		}
		e.report(ctx, err)
		if time.Since(began) > e.TTL {
			failures = 1
		}
		if etcd.Backoff(ctx, failures) != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

// report logs why an attempt failed, as a warning once a minute for each reason.
func (e *Elector) report(ctx context.Context, err error) {
	reason := string(etcd.Classify(err))
	e.Logger.Log(ctx, e.levels.Of(reason), api.LogElectionFailed, "key", e.Key, "reason", reason, "error", e.Explain(err))
}

// set records the leader. It logs when this replica begins and ceases to lead, and why.
func (e *Elector) set(holder string, leader bool, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case leader && !e.status.Leader:
		e.Logger.Info(api.LogLeading, "key", e.Key)
	case !leader && e.status.Leader:
		e.Logger.Info(api.LogNotLeading, "key", e.Key, "reason", why)
	}
	e.status.Leader, e.status.Holder = leader, holder
}

// revokeTimeout limits the request that ends an attempt.
const revokeTimeout = 2 * time.Second

// attempt takes part in the election with a new lease until it fails or ctx is done. It returns the
// error of etcd that ended it. In any case it revokes the lease, which also deletes the key and
// works even with NOSPACE. If the lease cannot be revoked, it expires.
func (e *Elector) attempt(ctx context.Context) error {
	granting, cancel := context.WithTimeout(ctx, e.RequestTimeout)
	defer cancel()
	lease, err := e.Client.Grant(granting, int64(e.TTL/time.Second))
	if err != nil {
		return fmt.Errorf("grant lease: %w", err)
	}
	err = e.contend(ctx, lease.ID)
	e.set("", false, err)

	revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	if _, err := e.Client.Revoke(revoking, lease.ID); err != nil {
		e.Logger.Debug("lease not revoked; it will expire", "key", e.Key, "error", err)
	}
	return err
}

// contend campaigns until the session ends, a request fails, or ctx is done. Each of these cancels
// the others: a campaign whose session ended would stay blocked, and later return nil without a key
// (etcd#19597).
func (e *Elector) contend(ctx context.Context, lease clientv3.LeaseID) error {
	g, ctx := errgroup.WithContext(ctx)
	// A canceled campaign resigns with the context of its client. Here that context is done too, so
	// that the call fails at once. The watcher is new because it opens a new stream: etcd refuses
	// watches on a stream whose token has expired. Nobody waits for its end: where etcd refuses a
	// watch in the same instant, Close never returns (etcd's client v3.7.3).
	client := clientv3.NewCtxClient(ctx)
	client.KV, client.Lease, client.Watcher = e.Client.KV, e.Client.Lease, clientv3.NewWatcher(e.Client)
	defer func() { go client.Watcher.Close() }()

	session, err := concurrency.NewSession(client, concurrency.WithLease(lease), concurrency.WithContext(ctx))
	if err != nil {
		return errors.Join(fmt.Errorf("keep lease alive: %w", err), g.Wait())
	}
	election := concurrency.NewElection(session, e.Key)
	campaigned := make(chan struct{})
	g.Go(func() error {
		<-session.Done()
		return errors.New("the session ended: its lease is gone or was not renewed in time")
	})
	g.Go(func() error {
		if err := election.Campaign(ctx, e.Identity); err != nil {
			return fmt.Errorf("campaign: %w", err)
		}
		close(campaigned)
		return nil
	})
	g.Go(func() error { return e.follow(ctx, election, lease, campaigned) })
	return g.Wait()
}

// follow reads the leader, when the campaign returns and three times per TTL, until a read fails or
// until this replica should lead and does not. The campaign alone is not sufficient: it may return
// without a key, and its watch may hang.
func (e *Elector) follow(ctx context.Context, election *concurrency.Election, lease clientv3.LeaseID, campaigned <-chan struct{}) error {
	for won := false; ; {
		select {
		case <-campaigned:
			won, campaigned = true, nil
		case <-time.After(e.TTL / 3):
		case <-ctx.Done():
			return ctx.Err()
		}
		reading, cancel := context.WithTimeout(ctx, e.RequestTimeout)
		resp, err := election.Leader(reading)
		cancel()
		if err != nil {
			return fmt.Errorf("read the election: %w", err)
		}
		leads := clientv3.LeaseID(resp.Kvs[0].Lease) == lease
		if won && !leads {
			return errors.New("the key is gone or is not the oldest")
		}
		won = leads
		e.set(string(resp.Kvs[0].Value), leads, nil)
	}
}
