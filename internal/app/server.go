package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"
)

// server is a listener and the HTTP server on it.
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

// newServer binds the listener that is configured in the section key.
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
