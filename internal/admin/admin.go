// Package admin implements the commands list, show, history, ask, unlock, pause, resume, drill and config check
// --connect. It connects to etcd with the configuration of the daemon and needs no daemon, except for drill. It has no
// rules of its own about when a lock is removed: Explain asks a daemon.
//
// Guaranteed: it writes nothing to etcd except the deletion by Unlock, the record of that, the keys
// of pauses and questions, none of which is under the prefix of the locks, and the lock of a drill.
// If etcd does not answer within etcd.request_timeout, a call returns an error that names the
// endpoints. A Watch says so and continues. Results are valid UTF-8 and bounded, apart from the
// number of locks; package output prints them safely.
//
// Not guaranteed: that a daemon is running, or that it has the same configuration.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Admin lists, shows and removes locks. It may be used concurrently.
type Admin struct {
	config config.Config
	logger *slog.Logger
	client *etcd.Client
	layout protocol.Layout
	store  lockstore.Store
	now    func() time.Time
	manual records.Unlocker
	// clocks are empty until Observe has asked a daemon.
	clocks atomic.Pointer[clocks]
}

// Open returns an Admin for the configuration of the daemon. It does not wait for etcd.
// The etcd client logs to logger.
func Open(c config.Config, logger *slog.Logger) (*Admin, error) {
	layout, err := protocol.NewLayout(c.Prefix)
	if err != nil {
		return nil, err
	}
	client, err := dial(c, logger)
	if err != nil {
		return nil, err
	}
	return On(client, layout, c, logger), nil
}

// On returns an Admin that uses a client, which Close closes.
func On(client *etcd.Client, layout protocol.Layout, c config.Config, logger *slog.Logger) *Admin {
	store := lockstore.Store{KV: client.KV, Layout: layout, RequestTimeout: c.Etcd.RequestTimeout}
	a := &Admin{config: c, logger: logger, client: client, layout: layout, store: store, now: time.Now, manual: records.NewUnlocker(c, client, store)}
	a.clocks.Store(&clocks{})
	return a
}

func dial(c config.Config, logger *slog.Logger) (*etcd.Client, error) {
	return etcd.New(etcd.Options{Etcd: c.Etcd, FailFast: true, Logger: logger})
}

// Close closes the connection. The Admin must not be used afterwards.
func (a *Admin) Close() error { return a.client.Close() }

// Prefix returns the prefix of the locks.
func (a *Admin) Prefix() string { return a.config.Prefix }

// ErrInterrupted is the error of a call whose context ended.
var ErrInterrupted = errors.New("interrupted")

// failed is failedOn for a request on the prefix of the locks.
func (a *Admin) failed(ctx context.Context, err error, permission string) error {
	return a.failedOn(ctx, err, permission, a.config.Prefix)
}

// failedOn adds to an error whether the context ended or etcd failed, at which endpoints, and
// what to change. permission is what the failed request needs on a prefix.
func (a *Admin) failedOn(ctx context.Context, err error, permission, prefix string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, lockstore.ErrAmbiguous):
		return fmt.Errorf("%w: etcd at %s", err, a.endpoints())
	case ctx.Err() != nil:
		return ErrInterrupted
	}
	explained := a.client.Explain(err, permission, prefix)
	switch {
	case errors.As(explained, new(*etcd.NoConnection)), errors.As(err, new(rpctypes.EtcdError)), status.Code(err) == codes.Unavailable:
		return fmt.Errorf("etcd at %s: %w", a.endpoints(), explained)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("etcd at %s does not answer within %s", a.endpoints(), a.config.Etcd.RequestTimeout)
	}
	return err
}

// CredentialsIgnored reports whether etcd has authentication disabled although a user is
// configured.
func (a *Admin) CredentialsIgnored() bool { return a.client.CredentialsIgnored() }

func (a *Admin) endpoints() string { return strings.Join(a.config.Etcd.Endpoints, ", ") }

// clocks are what a daemon has observed: by how much its clock is ahead of that of this host, and by how much those
// of holders' hosts are ahead of the daemon's.
type clocks struct {
	apart time.Duration
	hosts map[string]time.Duration
}

// Observe asks a daemon for the clocks that it has observed. List, Watch and History then go by its clock.
func (a *Admin) Observe(ctx context.Context, from client.Daemon) error {
	status, err := from.Status(ctx)
	if err != nil {
		return ofDaemon(from, err)
	}
	if status.Prefix != a.config.Prefix {
		return ofDaemon(from, fmt.Errorf("watches %s, not %s", status.Prefix, a.config.Prefix))
	}
	a.clocks.Store(&clocks{status.Now.Sub(a.now()), status.Clock.Ahead()})
	return nil
}

// instant is a time, and by how much the clocks of holders are known to be ahead of it, by the names of their locks.
type instant struct {
	time.Time
	ahead map[string]time.Duration
}

// instant returns the present time according to the clock of the daemon, or by ours if none was asked.
func (a *Admin) instant() instant {
	return instant{a.now().UTC().Add(a.clocks.Load().apart), make(map[string]time.Duration)}
}

// note notes by how much the clock of a holder is ahead: as a daemon has observed it or, if none was asked, as is given
// if it is known. Otherwise a lock that its holder renewed may have lived until now, if its deadline has passed by less
// than its patience: the clock is slow by that much, or the holder is dead.
func (a *Admin) note(now instant, l *protocol.Lock, ahead time.Duration, known bool) {
	late := protocol.TimestampOf(now.Time) - l.AutoUnlockAt()
	if c := a.clocks.Load(); c.hosts != nil {
		ahead = c.hosts[l.Hostname()]
	} else if alive := l.AliveAt(); !known && alive != 0 && late >= 0 && late < l.AutoUnlockAt()-alive {
		ahead = -time.Duration(late) - 1
	}
	if ahead != 0 {
		now.ahead[l.Name] = ahead
	}
}

// of returns the time according to the clock of the holder of a lock.
func (i instant) of(l *protocol.Lock) protocol.Timestamp {
	return protocol.TimestampOf(i.Time) + protocol.Timestamp(i.ahead[l.Name])
}
