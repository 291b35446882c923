package etcd

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

func options(endpoint string) Options {
	return Options{
		Endpoints:      []string{endpoint},
		DialTimeout:    5 * time.Second,
		RequestTimeout: etcdtest.Soon,
		HangAfter:      300 * time.Millisecond,
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
			o.Username, o.Password = "u", "p" // etcd without auth ignores them
			return o
		}(),
	} {
		o.RequestTimeout, o.DialTimeout = 300*time.Millisecond, etcdtest.Soon
		began := time.Now()
		c := mustNew(t, o)
		require.Less(t, time.Since(began), o.DialTimeout, name)
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
		began := time.Now()
		require.ErrorIs(t, call(t.Context()), context.DeadlineExceeded, name)
		require.Less(t, time.Since(began), keepAliveTime, name)
	}
}

func TestCallersDeadlineWins(t *testing.T) {
	t.Parallel()
	o := options("127.0.0.1:1")
	c := mustNew(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := c.Get(ctx, "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no answer from etcd to Range")
	require.Less(t, time.Since(began), o.RequestTimeout)
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
