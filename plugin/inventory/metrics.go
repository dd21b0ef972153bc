// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	portActive = prometheus.NewDesc("nri_rdma_hca_port_active",
		"1 if the port of the HCA was ACTIVE when the HCA last responded.", []string{"hca", "port", "link_layer"}, nil)
	age = prometheus.NewDesc("nri_rdma_hca_age_seconds",
		"Time since the HCA last responded or, if it never responded, since the first read.", []string{"hca"}, nil)
	outstanding = prometheus.NewDesc("nri_rdma_hca_reads_outstanding",
		"Reads that are waiting for a response; at most one for each HCA.", nil, nil)
)

// Describe implements prometheus.Collector.
func (i *Inventory) Describe(out chan<- *prometheus.Desc) {
	out <- portActive
	out <- age
	out <- outstanding
}

// Collect implements prometheus.Collector. Collect reads no HCA's files.
func (i *Inventory) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	s := i.latest.Load()
	if s.reading == 0 {
		return
	}
	if s.err != nil {
		out <- prometheus.NewInvalidMetric(portActive, s.err)
		return
	}
	for n := range s.node.HCAs {
		h := &s.node.HCAs[n]
		if !isPhysical(h) { // the port of a pod's function goes down when the pod ends
			continue
		}
		for _, port := range h.Ports {
			active := 0.0
			if port.Active() {
				active = 1
			}
			gauge(portActive, active, h.Name, strconv.Itoa(port.Number), port.LinkLayer)
		}
	}
	i.mu.Lock()
	ages := map[string]time.Duration{}
	waiting := 0
	for name, k := range i.known {
		ages[name] = time.Since(k.responded)
		if k.outstanding {
			waiting++
		}
	}
	i.mu.Unlock()
	for name, d := range ages {
		gauge(age, d.Seconds(), name)
	}
	gauge(outstanding, float64(waiting))
}
