// Package etcd makes the client that unlocker uses for etcd: TLS, login, keepalive,
// deadlines, metrics and log. It knows nothing about locks.
//
// Guaranteed: New neither waits for etcd nor fails because it is down, and the client connects by
// itself as soon as etcd is up. Every unary call has a deadline. The client retries a request that
// may write only if etcd has certainly not executed it; an unknown outcome is returned as an error.
//
// Not guaranteed: a deadline for streams (Watch, GetStream, keepalives), which live as
// long as their context; and a new watch on an old stream after the auth token has
// expired, which etcd may refuse (etcd#12385): see Watch.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coreos/go-semver/semver"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

const (
	// The keepalive detects a dead connection of the watch within 14 s. gRPC allows no
	// interval shorter than 10 s, and etcd none shorter than 5 s.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 4 * time.Second
	// maxAttempts limits the retries of one unary call by clientv3, by default 100. One
	// may be needed for a new token, some for members without a leader. Each attempt
	// has its own RequestTimeout unless the caller's context has a deadline.
	maxAttempts = 5
	// maxReconnectDelay limits the delay until a client connects to an etcd that is up
	// again. The default of gRPC, two minutes, would prolong every outage.
	maxReconnectDelay = 3 * time.Second
)

// Options are the options of New. Their values come from a valid configuration: New
// checks only the contents of the files. Its errors name the keys of the configuration.
type Options struct {
	// Etcd says how to connect. DialTimeout limits one attempt, including the TLS handshake,
	// and RequestTimeout each attempt of a unary call whose context has no deadline. The
	// PasswordFile is read by New and at each login, so a rotated secret needs no restart.
	config.Etcd
	// FailFast makes unary calls fail as soon as no endpoint accepts a connection, instead
	// of waiting for one until their deadline.
	FailFast bool
	// HangAfter is how long an alarm request may get no answer while another member answers one
	// before the connection counts as hung and is closed; 0 for ever.
	HangAfter time.Duration
	// DialOptions are appended to those that New makes, as for a network that tests control.
	DialOptions []grpc.DialOption
	// Logger gets the etcd client's own log; nil discards it.
	Logger *slog.Logger
	// Registerer gets the grpc_client_* metrics; nil disables them. Two clients cannot share one.
	Registerer prometheus.Registerer
}

// Client is a clientv3.Client made by New. It is safe for concurrent use.
type Client struct {
	*clientv3.Client
	options    Options
	login      *login
	asked      *atomic.Bool // whether etcd asked for a client certificate and there was none
	trusted    time.Time    // when the first of the authorities in use expires: those that the CA file had in New
	unregister func()
}

// Abandon ends the lease of a key that was not written, also after the end of ctx. If that fails,
// the lease ends by itself.
func (c *Client) Abandon(ctx context.Context, lease clientv3.LeaseID) {
	_, _ = c.Revoke(context.WithoutCancel(ctx), lease)
}

// New returns a client that connects in the background. It reads the files that the
// options name, and does nothing else that could block.
func New(o Options) (*Client, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	asked := &atomic.Bool{}
	tlsConfig, err := newTLS(o.TLS, o.Logger, asked)
	if err != nil {
		return nil, err
	}
	login, err := newLogin(o)
	if err != nil {
		return nil, err
	}
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	metrics := grpcprom.NewClientMetrics(grpcprom.WithClientHandlingTimeHistogram(grpcprom.WithHistogramBuckets(buckets)))
	unregister := func() {}
	if o.Registerer != nil {
		if err := o.Registerer.Register(metrics); err != nil {
			return nil, fmt.Errorf("register etcd client metrics: %w", err)
		}
		unregister = func() { o.Registerer.Unregister(metrics) }
	}
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:            o.Endpoints,
		DialTimeout:          o.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		// The server closes a connection after three pings without a stream, and gRPC
		// then doubles the ping interval permanently. Such pings are not needed: the
		// first call on an idle connection pings at once.
		PermitWithoutStream: false,
		// A sync would replace the endpoints by those that the members advertise, which
		// need not be reachable from here (load balancer, port-forward).
		AutoSyncInterval: 0,
		// Callers divide a read whose answer is larger. The default of 2 GiB is more
		// than should be in memory at once. Requests keep the default of 2 MiB, which is
		// etcd's own limit, so that a batch that is too large fails without being sent.
		MaxCallRecvMsgSize: 256 << 20,
		TLS:                tlsConfig,
		Username:           o.Username,
		Password:           login.initial,
		MaxUnaryRetries:    maxAttempts,
		Logger:             newZap(o.Logger),
		DialOptions:        slices.Concat(dialOptions(o, login, metrics), newTraffic(o).dialOptions(o.Endpoints[0], tlsConfig), o.DialOptions),
	})
	if err != nil {
		unregister()
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	login.begun.Store(true)
	return &Client{Client: cli, options: o, login: login, asked: asked, trusted: earliestEnd(o.TLS.CAFile), unregister: unregister}, nil
}

// Close ends all calls, watches and lease keepalives of the client, and unregisters its metrics.
func (c *Client) Close() error {
	c.unregister()
	if err := c.Client.Close(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // Canceled is what clientv3 returns when nothing failed
}

// dialOptions chains the interceptors inside those of clientv3, so that every attempt of
// a call passes through them. grpc.WithUnaryInterceptor would replace those of clientv3,
// and with them the renewal of expired tokens.
func dialOptions(o Options, l *login, m *grpcprom.ClientMetrics) []grpc.DialOption {
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = maxReconnectDelay
	opts := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: o.DialTimeout}),
		grpc.WithChainUnaryInterceptor(bound(o), l.intercept, m.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(m.StreamClientInterceptor()),
		grpc.WithPerRPCCredentials(onSend(Departs)),
	}
	if o.TLS.ServerName != "" {
		// gRPC overwrites tls.Config.ServerName with the host of the endpoint, as
		// clientv3's resolver gives it. Only the authority takes precedence over that.
		opts = append(opts, grpc.WithAuthority(o.TLS.ServerName))
	}
	return opts
}

// LockPermission returns the permission that the daemon needs on the prefix of the locks.
func LockPermission(c config.Config) string {
	if c.Reaper.Mode == "enforce" || c.Web.AllowUnlock {
		return ReadWrite
	}
	return Read
}

// bound gives a deadline to a unary call that has none, since clientv3 waits for a
// connection without limit.
//
// It runs inside the retry interceptor of clientv3, which retries any request after the gRPC status
// DeadlineExceeded while the context of the caller is not done: it would send a transaction again
// although the first may have been executed. Therefore bound replaces the status by an error
// without one, which that interceptor returns at once. It does the same with Canceled if the caller
// did not cancel. The other retries are harmless: requests that write (Put, Delete, Txn) are
// retried only after an auth error, which etcd returns before it executes anything. Reads, status,
// alarms and lease grants are also retried after Unavailable.
func bound(o Options) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); !has {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, o.RequestTimeout)
			defer cancel()
		}
		if o.FailFast {
			opts = append(opts, grpc.WaitForReady(false))
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		switch code := status.Code(err); {
		case code == codes.DeadlineExceeded:
			return noAnswer(method, context.DeadlineExceeded, err)
		case code == codes.Canceled && ctx.Err() == nil: // a proxy reset the stream; the request may have been executed
			return noAnswer(method, context.Canceled, err)
		}
		return err
	}
}

// noAnswer keeps the cause that gRPC knows (a refused connection, a failed handshake),
// which clientv3 would replace by the bare context error.
func noAnswer(method string, bare, err error) error {
	if cause := status.Convert(err).Message(); cause != bare.Error() {
		bare = fmt.Errorf("%w: %s", bare, cause)
	}
	return fmt.Errorf("no answer from etcd to %s: %w", path.Base(method), bare)
}

// StaleReads returns the version to upgrade to if a member of a version may answer a linearizable read with old
// data after its process was stopped for a while (etcd#20418), and "" otherwise.
func StaleReads(version string) (upgrade string) {
	v, err := semver.NewVersion(version)
	if err != nil {
		return ""
	}
	for _, fixed := range []string{"3.6.9", "3.5.28", "3.4.43"} {
		f := semver.New(fixed)
		if v.Major == f.Major && v.Minor == f.Minor && v.LessThan(*f) {
			return fixed
		}
	}
	return ""
}

// LogStaleReads logs each endpoint for which StaleReads names an upgrade. It asks each until it has answered once,
// and returns nil when all have or ctx is done.
func (c *Client) LogStaleReads(ctx context.Context) error {
	silent := slices.Clone(c.options.Endpoints)
	for failures := 1; len(silent) > 0 && ctx.Err() == nil; failures++ {
		silent = slices.DeleteFunc(silent, func(endpoint string) bool {
			status, err := c.Status(ctx, endpoint)
			if err != nil {
				return false
			}
			if upgrade := StaleReads(status.Version); upgrade != "" {
				c.options.Logger.Warn(api.LogStaleReads, "member", endpoint, "version", status.Version, "upgrade_to", upgrade)
			}
			return true
		})
		if len(silent) > 0 {
			_ = Backoff(ctx, failures) // the error of ctx
		}
	}
	return nil
}
