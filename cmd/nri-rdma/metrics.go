// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/singleflight"

	"github.com/rdma-spec/rdma-spec/plugin"
)

// newRegistry registers the metrics of the plugin, of the process, and of the given collectors. newRegistry includes
// few of Go's runtime metrics. No alert uses Go's runtime metrics, and most of a node's metrics would be Go's runtime
// metrics.
func newRegistry(p *plugin.Plugin, more ...prometheus.Collector) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(append(p.Collectors(), more...)...)
	registry.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		plugin.Flag("build_info", "Always 1. The label contains the version of nri-rdma.",
			prometheus.Labels{"version": version}, func() bool { return true }))
	return registry
}

// serveMetrics serves metrics in Prometheus' text format. Anybody can request the metrics, so concurrent requests share
// one collection.
func serveMetrics(from prometheus.Gatherer, log logrus.FieldLogger) http.HandlerFunc {
	var asked singleflight.Group
	return func(w http.ResponseWriter, _ *http.Request) {
		text, err, _ := asked.Do("", func() (any, error) { return collect(from, log) })
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		_, _ = w.Write(text.([]byte)) // the client may be gone
	}
}

// collect returns all available metrics, and logs why other metrics are missing.
func collect(from prometheus.Gatherer, log logrus.FieldLogger) ([]byte, error) {
	families, err := from.Gather()
	if err != nil {
		log.WithError(err).Error("metrics are missing")
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return nil, err
		}
	}
	if text.Len() == 0 {
		return nil, errors.Join(errors.New("no metrics"), err)
	}
	return text.Bytes(), nil
}
