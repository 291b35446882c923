package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// sample is what one scrape of the daemon told.
type sample struct {
	at      time.Time // of the request
	states  map[string]float64
	overdue map[string]overdue
	up      bool               // unlocker_etcd_up
	forced  float64            // unlocker_forced_unlocks_total, all triggers
	removed map[string]bool    // unlocker_forced_unlock_timestamp_seconds
	holds   []string           // unlocker_reaper_hold, those in force
	offsets map[string]float64 // unlocker_host_clock_offset_seconds
}

// overdue is a lock past its alert time.
type overdue struct {
	host, owner string
	unlockAt    time.Time
}

const (
	scrapeEvery   = 200 * time.Millisecond
	scrapeTimeout = 5 * time.Second
)

// awaitReady returns when the daemon says that it is ready, and its watch is up:
// only what is seen live tells something about clocks.
func awaitReady(ctx context.Context, base string) error {
	for {
		status, err := get(ctx, base+"/readyz", func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if err != nil {
			return err
		}
		var s sample
		if _, err = get(ctx, base+"/metrics", s.parse); err != nil || status == http.StatusOK && s.up {
			return err
		}
		if err := pause(ctx, scrapeEvery/4); err != nil {
			return err
		}
	}
}

// scrape asks for the metrics again and again until ctx is done.
func scrape(ctx context.Context, base string, p post) error {
	for {
		s := &sample{at: time.Now()}
		status, err := get(ctx, base+"/metrics", s.parse)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%s/metrics says %s", base, http.StatusText(status))
		}
		if err != nil {
			return err
		}
		p(s)
		if err := pause(ctx, scrapeEvery); err != nil {
			return err
		}
	}
}

func get(ctx context.Context, url string, read func(io.Reader) error) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	// Connections that stay open would outlive the demo.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, read(resp.Body)
}

func (s *sample) parse(r io.Reader) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return err
	}
	s.states, s.overdue, s.removed = map[string]float64{}, map[string]overdue{}, map[string]bool{}
	s.offsets = map[string]float64{}
	each(families["unlocker_locks"], func(l map[string]string, v float64) { s.states[l["state"]] = v })
	each(families["unlocker_lock_info"], func(l map[string]string, _ float64) {
		s.overdue[l["lock"]] = overdue{host: l["hostname"], owner: l["owner"]}
	})
	each(families["unlocker_lock_auto_unlock_timestamp_seconds"], func(l map[string]string, v float64) {
		o := s.overdue[l["lock"]]
		o.unlockAt = time.UnixMilli(int64(v * 1000))
		s.overdue[l["lock"]] = o
	})
	each(families["unlocker_forced_unlocks_total"], func(_ map[string]string, v float64) { s.forced += v })
	each(families["unlocker_forced_unlock_timestamp_seconds"], func(l map[string]string, _ float64) { s.removed[l["lock"]] = true })
	each(families["unlocker_host_clock_offset_seconds"], func(l map[string]string, v float64) { s.offsets[l["hostname"]] = v })
	each(families["unlocker_etcd_up"], func(_ map[string]string, v float64) { s.up = v == 1 })
	each(families["unlocker_reaper_hold"], func(l map[string]string, v float64) {
		if v == 1 {
			s.holds = append(s.holds, l["reason"])
		}
	})
	return nil
}

func each(f *dto.MetricFamily, do func(labels map[string]string, value float64)) {
	for _, m := range f.GetMetric() {
		labels := map[string]string{}
		for _, pair := range m.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		do(labels, m.GetGauge().GetValue()+m.GetCounter().GetValue())
	}
}
