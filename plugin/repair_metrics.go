// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import "github.com/prometheus/client_golang/prometheus"

// repairMetrics tells of the last pass over the containers that run, when it is asked. Where repair is off, it tells nothing.
type repairMetrics struct{ *repair }

var (
	runningContainers = prometheus.NewDesc(namespace+"_running_containers",
		"RDMA containers that run, by memlock (sufficient, below policy, unknown).", []string{"memlock"}, nil)
	repairsDone = prometheus.NewDesc(namespace+"_repairs_total",
		"Running containers that were to be raised to policy, by result (raised, failed).", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (repairMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- runningContainers
	out <- repairsDone
}

// Collect implements prometheus.Collector.
func (m repairMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.stats.Load()
	if s == nil {
		return
	}
	for label, n := range map[string]int{"below": s.Below, "unknown": s.Unknown, "sufficient": s.RDMA - s.Below - s.Unknown} {
		out <- prometheus.MustNewConstMetric(runningContainers, prometheus.GaugeValue, float64(n), label)
	}
	for label, n := range map[string]uint64{"raised": s.Repaired, "failed": s.Failed} {
		out <- prometheus.MustNewConstMetric(repairsDone, prometheus.CounterValue, float64(n), label)
	}
}
