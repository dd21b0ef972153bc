// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import "github.com/prometheus/client_golang/prometheus"

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nri_rdma_"+name, help, labels, nil)
}

var (
	runningContainers = desc("running_containers",
		"Running RDMA containers, by memlock: sufficient, lowered (by the program itself), below (policy), spec-below "+
			"(later execs are below policy), unknown.", "memlock")
	withoutIPCLock = desc("containers_without_ipc_lock",
		"Containers whose stored spec lacks the CAP_IPC_LOCK that the policy gives.")
	repairsTotal = desc("repairs_total", "Attempts to raise a running container to policy, by result (raised, failed).",
		"result")
	unrecorded = desc("unrecorded_containers_total",
		"Containers that repair does not know because its record was full.")
	lastPass = desc("last_pass_timestamp_seconds",
		"When repair last compared the running containers with the policy.")
)

// Describe implements prometheus.Collector.
func (*Loop) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningContainers, withoutIPCLock, repairsTotal, unrecorded, lastPass} {
		out <- d
	}
}

// Collect implements prometheus.Collector. Before the first pass, and where repair is off, there are no metrics.
func (r *Loop) Collect(out chan<- prometheus.Metric) {
	s, ok := r.Stats()
	if !ok {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	for _, verdict := range []Verdict{Sufficient, Lowered, Below, SpecBelow, Unknown} {
		gauge(runningContainers, float64(s.Memlock[verdict]), string(verdict))
	}
	gauge(withoutIPCLock, float64(s.WithoutIPCLock))
	gauge(lastPass, float64(s.Looked.UnixMilli())/1000)
	count(repairsTotal, s.Raised, "raised")
	count(repairsTotal, s.Failed, "failed")
	count(unrecorded, s.Unrecorded)
}
