package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
)

// NewRegistry returns a registry with the given collectors, go_*, process_* and
// unlocker_build_info. It shares nothing with any other registry.
func NewRegistry(given ...prometheus.Collector) (*prometheus.Registry, error) {
	reg := prometheus.NewRegistry()
	if err := register(reg, given...); err != nil {
		return nil, err
	}
	return reg, nil
}

func register(reg prometheus.Registerer, given ...prometheus.Collector) error {
	standard := []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		version.NewCollector("unlocker"),
	}
	for _, c := range append(standard, given...) {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering a metrics collector: %w", err)
		}
	}
	return nil
}
