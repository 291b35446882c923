package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"

	"github.com/etcd-unlocker/unlocker/internal/elect"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

type server struct {
	listener  net.Listener
	server    *http.Server
	webConfig string
	logger    *slog.Logger
}

// Limits of the connections of each listener. Further ones wait until another ends. Whoever opens
// many exhausts neither the file descriptors, which etcd's client needs, nor the memory: each may
// send 64 KiB of headers. The probes have a listener of their own, so that readers of the API cannot
// keep them waiting.
const (
	maxOpsConns = 128
	maxWebConns = 512
)

func newServer(key, listen, webConfig string, maxConns int, handler http.Handler, logger *slog.Logger) (*server, error) {
	if err := web.Validate(webConfig); err != nil {
		return nil, fmt.Errorf("%s.web_config_file: %w", key, err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("%s.listen: %w", key, err)
	}
	return &server{
		listener:  netutil.LimitListener(listener, maxConns),
		webConfig: webConfig,
		logger:    logger,
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second, // a client that never reads would keep a request in flight
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    64 << 10,
			ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		},
	}, nil
}

// addr returns the address, or "" if the server is nil.
func (s *server) addr() string {
	if s == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// run serves until ctx is done, and then waits up to a second for requests in flight.
func (s *server) run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() {
		served <- web.Serve(s.listener, s.server, &web.FlagConfig{WebConfigFile: &s.webConfig}, s.logger)
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.server.Shutdown(stopping); err != nil {
		_ = s.server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// close closes the listener if run has not.
func (s *server) close(context.Context) error {
	if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (a *App) newElector() (err error) {
	c := a.config
	if a.host, err = os.Hostname(); err != nil {
		return fmt.Errorf("name of this host: %w", err)
	}
	a.identity = fmt.Sprintf("%s_%d", a.host, os.Getpid())
	if !c.Election.Enabled {
		return nil
	}
	a.elector, err = elect.New(elect.Options{
		Client:         a.client.Client,
		Key:            c.ElectionKey(),
		TTL:            c.Election.TTL,
		Identity:       a.identity,
		RequestTimeout: c.Etcd.RequestTimeout,
		Explain:        func(err error) error { return a.client.Explain(err, etcd.ReadWrite, c.ElectionPrefix()) },
		Logger:         a.logger,
	})
	return err
}

// leads reports whether this replica acts at due rather than after the standby delay.
// Without an election all replicas do.
func (a *App) leads() bool { return a.elector == nil || a.elector.Leader() }

// newOpsHandler serves metrics and the health probes, and profiles if profiled is set. missing
// returns the reason why the daemon is not ready, or "".
func newOpsHandler(registry *prometheus.Registry, missing func() string, profiled bool, logger *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		Registry:            registry,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: 8,
		ErrorLog:            slog.NewLogLogger(logger.Handler(), slog.LevelError),
	}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, "") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, missing()) })
	if profiled {
		// Without pprof.Cmdline: the command line may have a password.
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func answer(w http.ResponseWriter, missing string) {
	status, text := http.StatusOK, "ok"
	if missing != "" {
		status, text = http.StatusServiceUnavailable, "not ready: "+missing
	}
	http.Error(w, text, status) // which sends any status as plain text
}
