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

// newRegistry registers the metrics of the plugin, of the process, and more. Of Go's runtime it has few: they are most
// of what a node would be asked for, and nobody's alert.
func newRegistry(p *plugin.Plugin, more ...prometheus.Collector) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(append(p.Collectors(), more...)...)
	registry.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		plugin.Flag("build_info", "1; the version is in the label.", prometheus.Labels{"version": version},
			func() bool { return true }))
	return registry
}

// serveMetrics answers with metrics in Prometheus' text format. Anybody can ask: those who ask while the metrics are
// collected get the same answer, so that the plugin works for one of them.
func serveMetrics(from prometheus.Gatherer, log logrus.FieldLogger) http.HandlerFunc {
	var asked singleflight.Group
	return func(w http.ResponseWriter, _ *http.Request) {
		text, err, _ := asked.Do("", func() (any, error) { return collect(from, log) })
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		_, _ = w.Write(text.([]byte)) // who is gone needs no answer
	}
}

// collect returns all metrics that can be had. The log has why others cannot.
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
