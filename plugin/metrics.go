// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
)

// metrics are the plugin's metrics. Labels have a small, fixed set of values, none of which a pod's author writes.
type metrics struct {
	requests        *prometheus.CounterVec
	refusals        *prometheus.CounterVec
	duration        prometheus.Histogram
	unknown         prometheus.Counter
	leftAlone       prometheus.Counter
	leftOut         prometheus.Counter
	authored        prometheus.Counter
	grants          *prometheus.CounterVec
	confirmDuration prometheus.Histogram
	configValid     prometheus.Gauge
	configLoaded    prometheus.Gauge
}

const namespace = "nri_rdma"

// The results of grants.
const (
	grantConfirmed   = "confirmed"
	grantRaised      = "raised"       // the memlock was lower, and was raised in the stored spec
	grantLate        = "late"         // the verbs device appeared after the response; memlock and IPC_LOCK were written
	grantRefusedLate = "refused_late" // the same, but the policy refuses the container
	grantUnconfirmed = "unconfirmed"  // the container may lack part of its grant
	grantAnswered    = "answered"     // nothing shows what the container got
)

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: name, Help: help, Buckets: []float64{.00001, .0001, .001, .01, .1, .3, 1},
		})
	}
	m := &metrics{
		requests: counter("requests_total",
			"CreateContainer requests from the runtime, by result (adjusted, untouched, refused) and signal.",
			"result", "signal"),
		refusals: counter("refusals_total",
			"Refused container creations, by reason. The kubelet retries each container until it is created.", "reason"),
		duration: histogram("request_duration_seconds", "Time taken to decide on a container."),
		unknown: counter("unknown_resources_total",
			"Containers that got a reduced grant or none, because the kubelet did not report their resources.",
		).WithLabelValues(),
		leftAlone: counter("left_alone_total",
			"Containers that got no grant, because the kubelet did not respond when queried for their resources.",
		).WithLabelValues(),
		leftOut: counter("hcas_left_out_total",
			"HCAs left out of a request for all HCAs, because they have no ACTIVE port or cannot be used.",
		).WithLabelValues(),
		authored: counter("authors_devices_total",
			"Containers left unchanged, because the pod's author may have chosen their verbs device "+
				"with another plugin's annotation.").WithLabelValues(),
		grants: counter("grants_total",
			"Grants, by result: confirmed; raised (memlock had been set lower); "+
				"late (the verbs device appeared after the response); "+
				"refused_late (as for late, but the policy would have refused the container, which already exists); "+
				"unconfirmed (the container may lack part of its grant); "+
				"answered (the plugin has answered, but cannot see what the container got).", "result"),
		confirmDuration: histogram("confirm_duration_seconds",
			"Time that confirming a grant adds to a container's creation."),
		configValid:  gauge("config_valid", "1 if the configuration that was read last is in force; 0 if it is invalid."),
		configLoaded: gauge("config_loaded_timestamp_seconds", "When the configuration in force was loaded."),
	}
	m.configValid.Set(1)
	// Start at 0, so that the first failure is an increase.
	for _, result := range []string{grantConfirmed, grantRaised, grantLate, grantRefusedLate, grantUnconfirmed,
		grantAnswered} {
		m.grants.WithLabelValues(result)
	}
	return m
}

// Collectors returns all of the plugin's metrics, for a registry. Those of other packages are read at collection time.
func (p *Plugin) Collectors() []prometheus.Collector {
	m := p.metrics
	all := []prometheus.Collector{
		m.requests, m.refusals, m.duration, m.unknown, m.leftAlone, m.leftOut, m.authored, m.grants, m.confirmDuration,
		m.configValid, m.configLoaded,
		p.Inventory,
		Flag("connected", "1 while the plugin is registered with the runtime.", nil, p.Registered),
		Flag("waiting", "1 while this process is waiting behind a registered process to take over its connection.",
			nil, p.registration.Behind),
		Flag("registration_paused",
			"1 while the plugin is pausing for several minutes, "+
				"because the runtime closed the connection during two registrations in a row.",
			nil, p.registration.Paused),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "connected_unregistered_seconds",
			Help: "Time that the plugin has been connected without being registered. " +
				"The runtime creates no containers meanwhile.",
		}, func() float64 { return p.registration.Unregistered().Seconds() }),
		registeredAt{p.registration},
		registeredBelow{p},
	}
	return all
}

// registeredAt is the time of the last registration. The metric is absent before the first one, so that each change is
// a registration, even after a crash.
type registeredAt struct{ *registration.Registration }

var registeredAtDesc = prometheus.NewDesc(namespace+"_registered_timestamp_seconds",
	"Time of the plugin's last registration. A process that takes over the connection keeps this time.", nil, nil)

// Describe implements prometheus.Collector.
func (registeredAt) Describe(to chan<- *prometheus.Desc) { to <- registeredAtDesc }

// Collect implements prometheus.Collector.
func (r registeredAt) Collect(to chan<- prometheus.Metric) {
	if when := r.When(); !when.IsZero() {
		to <- prometheus.MustNewConstMetric(registeredAtDesc, prometheus.GaugeValue, float64(when.UnixNano())/1e9)
	}
}

// registeredBelow is the number of containers that were below policy at the registration. The metric is absent until it
// is known.
type registeredBelow struct{ *Plugin }

var registeredBelowDesc = prometheus.NewDesc(namespace+"_registered_below_policy",
	"Running containers that have a verbs device and whose memlock was below policy when the plugin last registered. "+
		"The value is not updated later. A process that takes over the connection keeps this value.", nil, nil)

// Describe implements prometheus.Collector.
func (registeredBelow) Describe(to chan<- *prometheus.Desc) { to <- registeredBelowDesc }

// Collect implements prometheus.Collector.
func (r registeredBelow) Collect(to chan<- prometheus.Metric) {
	if count := r.below.Load(); count != nil {
		to <- prometheus.MustNewConstMetric(registeredBelowDesc, prometheus.GaugeValue, float64(*count))
	}
}

// Flag returns a metric that is 1 while holds returns true, otherwise 0. Its labels are constant.
func Flag(name, help string, labels prometheus.Labels, holds func() bool) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: name, Help: help, ConstLabels: labels,
	}, func() float64 {
		if holds() {
			return 1
		}
		return 0
	})
}

// loaded records whether the last configuration read is in force.
func (m *metrics) loaded(valid bool) {
	m.configValid.Set(0)
	if valid {
		m.configValid.Set(1)
		m.configLoaded.SetToCurrentTime()
	}
}

// count counts a decision.
func (m *metrics) count(d policy.Decision, since time.Time) {
	result := "untouched"
	switch {
	case d.Refusal != nil:
		result = "refused"
		m.refusals.WithLabelValues(string(d.Refusal.Cause)).Inc()
	case d.Grant != nil:
		result = "adjusted"
	}
	if d.Unknown && d.Refusal == nil {
		m.unknown.Inc()
	}
	if d.Authored != "" {
		m.authored.Inc()
	}
	m.leftOut.Add(float64(len(d.LeftOut)))
	m.requests.WithLabelValues(result, string(d.Signal)).Inc()
	m.duration.Observe(time.Since(since).Seconds())
}
