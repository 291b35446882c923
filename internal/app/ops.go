package app

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

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

// answer answers 200 ok, or 503 with the reason.
func answer(w http.ResponseWriter, missing string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if missing != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not ready: "+missing+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}
