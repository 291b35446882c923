package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// opsServer serves what machines ask for: metrics and probes.
type opsServer struct {
	listener  net.Listener
	server    *http.Server
	webConfig string
	logger    *slog.Logger
}

// newOpsServer binds the listener. missing tells what is missing for readiness,
// or "".
func newOpsServer(c config.Ops, registry *prometheus.Registry, missing func() string, logger *slog.Logger) (*opsServer, error) {
	if err := web.Validate(c.WebConfigFile); err != nil {
		return nil, fmt.Errorf("ops.web_config_file: %w", err)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("ops.listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		Registry:            registry,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: 8,
		ErrorLog:            slog.NewLogLogger(logger.Handler(), slog.LevelError),
	}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { probe(w, "") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { probe(w, missing()) })
	return &opsServer{
		listener:  listener,
		webConfig: c.WebConfigFile,
		logger:    logger,
		server: &http.Server{
			Handler:           mux,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second, // who never reads would keep one of the requests in flight
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    64 << 10,
			ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		},
	}, nil
}

// probe answers 200 ok, or 503 with what is missing.
func probe(w http.ResponseWriter, missing string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if missing != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not ready: "+missing+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

// run serves until ctx is done, and lets requests under way end.
func (o *opsServer) run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() {
		served <- web.Serve(o.listener, o.server, &web.FlagConfig{WebConfigFile: &o.webConfig}, o.logger)
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := o.server.Shutdown(stopping); err != nil {
		_ = o.server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// close frees the listener where run never did.
func (o *opsServer) close(context.Context) error {
	if err := o.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
