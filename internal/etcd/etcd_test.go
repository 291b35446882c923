package etcd

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

func options(endpoint string) Options {
	return Options{
		Etcd: config.Etcd{
			Endpoints:      []string{endpoint},
			DialTimeout:    etcdtest.Soon, // a handshake on a busy machine takes long
			RequestTimeout: etcdtest.Soon,
		},
		HangAfter: 300 * time.Millisecond,
	}
}

func mustNew(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// refused waits until a connection of the client has failed. A call then shows the cause at its
// deadline.
func refused(t *testing.T, c *Client) *Client {
	t.Helper()
	connection := c.ActiveConnection()
	connection.Connect()
	etcdtest.Eventually(t, func() bool { return connection.GetState() == connectivity.TransientFailure }, "no connection")
	return c
}

func eventuallyPut(t *testing.T, c *Client, key string) {
	t.Helper()
	etcdtest.Eventually(t, func() bool {
		_, err := c.Put(t.Context(), key, "v")
		return err == nil
	})
}

func TestStartsWithoutEtcdAndRecovers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	cluster.Kill(0)
	for name, o := range map[string]Options{
		"anonymous": options(cluster.Addr(0)),
		"with user": func() Options {
			o := options(cluster.Addr(0))
			o.Username, o.Password = "u", config.NewSecret("p") // etcd without auth ignores them
			return o
		}(),
	} {
		o.RequestTimeout, o.DialTimeout = 300*time.Millisecond, time.Hour // New does not wait for it
		c := mustNew(t, o)
		_, err := refused(t, c).Put(t.Context(), "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.ErrorContains(t, err, "connection refused", name)
		require.NoError(t, cluster.Restart(t.Context()), name)
		eventuallyPut(t, c, "k")
		cluster.Kill(0)
	}
}

func TestCallOnHangingConnectionEnds(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	proxy := cluster.Proxy(0)
	o := options(proxy.Addr())
	o.RequestTimeout = 300 * time.Millisecond
	c := mustNew(t, o)
	eventuallyPut(t, c, "k")

	proxy.Blackhole()
	for name, call := range map[string]func(context.Context) error{
		"read":  func(ctx context.Context) error { _, err := c.Get(ctx, "k"); return err },
		"write": func(ctx context.Context) error { _, err := c.Put(ctx, "k", "v"); return err },
		"alarm": func(ctx context.Context) error { _, err := c.AlarmList(ctx); return err },
		"lease": func(ctx context.Context) error { _, err := c.Grant(ctx, 10); return err },
	} {
		require.ErrorIs(t, call(t.Context()), context.DeadlineExceeded, name) // a keepalive would end it as unavailable
	}
}

func TestCallersDeadlineWins(t *testing.T) {
	t.Parallel()
	o := options("127.0.0.1:1")
	o.RequestTimeout = time.Hour
	c := mustNew(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Get(ctx, "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no answer from etcd to Range")
}

func TestCanceledCallEnds(t *testing.T) {
	t.Parallel()
	c := mustNew(t, options("127.0.0.1:1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Get(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
}

// The transaction was executed but its answer was lost: it must not be sent again, and the
// caller must get an error that says that the outcome is unknown.
func TestTransactionWithoutAnswerIsSentOnce(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	proxy := cluster.Proxy(0)
	registry := prometheus.NewRegistry()
	o := options(proxy.Addr())
	o.RequestTimeout, o.Registerer = 5*time.Second, registry // enough for the request to arrive
	c := mustNew(t, o)
	eventuallyPut(t, c, "other")

	proxy.HoldReplies()
	_, err := c.Txn(t.Context()).Then(clientv3.OpPut("k", "v")).Commit()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var got *clientv3.GetResponse
	etcdtest.Eventually(t, func() bool {
		got, err = cluster.Client.Get(t.Context(), "k")
		require.NoError(t, err)
		return got.Count == 1
	})
	require.EqualValues(t, 1, got.Kvs[0].Version)
	require.EqualValues(t, 1, started(t, registry, "Txn"))
}

// A proxy that resets a stream makes the outcome unknown too.
func TestCallThatAProxyCancelsIsSentOnce(t *testing.T) {
	t.Parallel()
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return status.Error(codes.Canceled, "stream reset")
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Stop(); require.NoError(t, <-served) }()
	registry := prometheus.NewRegistry()
	o := options(listener.Addr().String())
	o.Registerer = registry
	c := mustNew(t, o)
	_, err = c.Txn(t.Context()).Then(clientv3.OpPut("k", "v")).Commit()
	require.ErrorIs(t, err, context.Canceled)
	require.NotEqual(t, codes.Canceled, status.Code(err), "etcd's client would send it again")
	require.EqualValues(t, 1, started(t, registry, "Txn"))
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	registry := prometheus.NewPedanticRegistry()
	o := options(cluster.Addr(0))
	o.Registerer = registry
	c, err := New(o)
	require.NoError(t, err)
	_, err = c.Get(t.Context(), "k")
	require.NoError(t, err)
	require.EqualValues(t, 1, started(t, registry, "Range"))
	families, err := registry.Gather()
	require.NoError(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	require.Subset(t, names, []string{"grpc_client_handled_total", "grpc_client_handling_seconds"})

	_, err = New(o)
	require.ErrorContains(t, err, "register etcd client metrics")
	require.NoError(t, c.Close())
	again, err := New(o)
	require.NoError(t, err, "Close must free the names")
	require.NoError(t, again.Close())
}

// started returns grpc_client_started_total of one method.
func started(t *testing.T, g prometheus.Gatherer, method string) float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "grpc_client_started_total" && l.GetName() == "grpc_method" && l.GetValue() == method {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	missing := filepath.Join(dir, "missing")
	a, b := newCA(t, "a"), newCA(t, "b")
	pair, other := a.issue(t, dir, "one"), b.issue(t, dir, "two")
	mixed := filepath.Join(dir, "mixed.pem")
	concat(t, mixed, pair.cert, pair.key)

	for name, tt := range map[string]struct {
		edit func(*Options)
		want string
	}{
		"empty password":     {func(o *Options) { o.Username, o.PasswordFile = "u", empty }, "etcd.password_file: " + empty + " is empty"},
		"no password file":   {func(o *Options) { o.Username, o.PasswordFile = "u", missing }, "etcd.password_file: open " + missing + ": no such file or directory"},
		"no ca file":         {func(o *Options) { o.TLS.CAFile = missing }, "etcd.tls.ca_file: open " + missing + ": no such file or directory"},
		"ca without a cert":  {func(o *Options) { o.TLS.CAFile = empty }, "etcd.tls.ca_file: no certificate in " + empty},
		"key among the cas":  {func(o *Options) { o.TLS.CAFile = mixed }, "etcd.tls.ca_file: " + mixed + ": block 2 is not a certificate: x509: malformed tbs certificate"},
		"no cert file":       {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = missing, pair.key }, "etcd.tls.cert_file: open " + missing + ": no such file or directory"},
		"no key file":        {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = pair.cert, missing }, "etcd.tls.key_file: open " + missing + ": no such file or directory"},
		"key of another":     {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = pair.cert, other.key }, "etcd.tls.cert_file " + pair.cert + ", etcd.tls.key_file " + other.key + ": tls: private key does not match public key"},
		"no pem in the cert": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = empty, pair.key }, "etcd.tls.cert_file " + empty + ", etcd.tls.key_file " + pair.key + ": tls: failed to find any PEM data in certificate input"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options("127.0.0.1:1")
			tt.edit(&o)
			_, err := New(o)
			require.EqualError(t, err, tt.want)
		})
	}
}

func TestNewAcceptsEndpoints(t *testing.T) {
	t.Parallel()
	for _, e := range []string{"etcd:2379", "10.0.0.1:2379", "[::1]:2379", "http://etcd:2379", "https://etcd:2379/", "unix:///run/etcd.sock", "unix:etcd.sock"} {
		c, err := New(options(e))
		require.NoError(t, err, e)
		require.NoError(t, c.Close(), e)
	}
}

func TestPageLimitFollowsTheSizeOfValues(t *testing.T) {
	t.Parallel()
	page := func(n, size int) []*mvccpb.KeyValue {
		kv := &mvccpb.KeyValue{Value: make([]byte, size)}
		return slices.Repeat([]*mvccpb.KeyValue{kv}, n)
	}
	require.EqualValues(t, 8000, nextLimit(1000, page(1000, 10)), "grows")
	require.EqualValues(t, 8, nextLimit(500, page(500, 1<<20)), "shrinks to what fits")
	require.EqualValues(t, 1, nextLimit(500, page(1, 100<<20)), "but never to nothing")
	require.EqualValues(t, 64, nextLimit(8, page(8, 0)), "empty values")
}
