// Package etcd makes the client that unlocker uses for etcd: TLS, login,
// keepalive, deadlines, metrics and log. It knows nothing of locks.
//
// Guaranteed: New neither waits for etcd nor fails because it is absent, and the client
// recovers by itself when etcd comes (back). No unary call is without an end. A request
// that may write is sent again by the client only where etcd has certainly not executed
// it; an unknown outcome reaches the caller as an error.
//
// Not guaranteed: an end to streams (Watch, GetStream, keepalives), which live as long
// as their context; and not an established watch after the auth token has expired: a new
// watch on an old stream may be refused (etcd#12385). Use a Watcher of your own, made by
// clientv3.NewWatcher, for each long watch, and list again when it is canceled.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

const (
	// Keepalive finds a dead connection under the watch within 14 s. Ten seconds is
	// also the least that gRPC allows; etcd itself refuses less than five.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 4 * time.Second
	// maxAttempts bounds etcd's own retries of one unary call, by default 100: one may
	// be needed for a new token, some for members without a leader. Each attempt has
	// its own RequestTimeout unless the caller's context has a deadline.
	maxAttempts = 5
	// maxReconnectDelay is how long after its return etcd may go unnoticed. gRPC's own
	// two minutes would be an outage of ours after every longer one of etcd.
	maxReconnectDelay = 3 * time.Second
)

// Options is what New needs. Their values are those of a valid configuration: New does not check them, only what is in
// the files. Names in its errors are those of the configuration file.
type Options struct {
	// Endpoints are host:port, http(s)://host:port or unix sockets, all of one scheme.
	Endpoints []string
	// DialTimeout bounds one attempt to connect, the TLS handshake included.
	DialTimeout time.Duration
	// RequestTimeout bounds every attempt of a unary call whose context has no deadline.
	RequestTimeout time.Duration
	// Username is empty where etcd has no users or takes the client certificate's CN.
	Username string
	// Password or PasswordFile, not both. The file is read in New and again at each
	// login, so a rotated secret needs no restart.
	Password, PasswordFile string
	TLS                    TLS
	// Logger gets the etcd client's own log; nil discards it.
	Logger *slog.Logger
	// Registerer gets the grpc_client_* metrics; nil turns them off. Two clients cannot
	// share one.
	Registerer prometheus.Registerer
}

// Client is a clientv3.Client made by New. It is safe for concurrent use.
type Client struct {
	*clientv3.Client
	options    Options
	expiries   expiries
	unregister func()
}

// New returns a client that connects in the background. It reads the files named in the
// options and does nothing else that could block.
func New(o Options) (*Client, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	tlsConfig, err := o.TLS.config(o.Logger)
	if err != nil {
		return nil, err
	}
	login, err := newLogin(o)
	if err != nil {
		return nil, err
	}
	metrics := newMetrics()
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
		// etcd's server counts a ping without a stream as an offence: after three it
		// closes the connection, and gRPC doubles the ping interval for good. There is
		// no need either: the first call on an idle connection pings at once.
		PermitWithoutStream: false,
		// It would replace the endpoints by those the members advertise, which need not
		// be reachable from here (balancer, port-forward).
		AutoSyncInterval: 0,
		// Out, clientv3's own 2 MiB stay, which is etcd's limit: a batch too large fails
		// without travelling. In, its 2 GiB are more than we want to hold at once: an
		// answer that is larger is asked for in parts.
		MaxCallRecvMsgSize: 256 << 20,
		TLS:                tlsConfig,
		Username:           o.Username,
		Password:           login.initial,
		MaxUnaryRetries:    maxAttempts,
		Logger:             newZap(o.Logger),
		DialOptions:        dialOptions(o, login, metrics),
	})
	if err != nil {
		unregister()
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	login.begin()
	return &Client{Client: cli, options: o, expiries: newExpiries(o.TLS), unregister: unregister}, nil
}

// Close ends all calls, watches and leases' keepalives of the client and takes its
// metrics off the registry.
func (c *Client) Close() error {
	c.unregister()
	if err := c.Client.Close(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // that is how clientv3 says that it was closed
}

// dialOptions chains our interceptors behind etcd's own: grpc.WithUnaryInterceptor would
// replace etcd's, and with it the renewal of expired tokens. So each attempt passes ours.
func dialOptions(o Options, l *login, m *grpcprom.ClientMetrics) []grpc.DialOption {
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = maxReconnectDelay
	opts := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: o.DialTimeout}),
		grpc.WithChainUnaryInterceptor(bound(o.RequestTimeout), l.intercept, m.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(m.StreamClientInterceptor()),
	}
	if o.TLS.ServerName != "" {
		// gRPC verifies against the name clientv3's resolver gives each address, the
		// endpoint's host, and overwrites tls.Config.ServerName with it; only the
		// authority stands above.
		opts = append(opts, grpc.WithAuthority(o.TLS.ServerName))
	}
	return opts
}

func newMetrics() *grpcprom.ClientMetrics {
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	return grpcprom.NewClientMetrics(grpcprom.WithClientHandlingTimeHistogram(grpcprom.WithHistogramBuckets(buckets)))
}
