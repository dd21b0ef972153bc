// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
)

// metrics are the plugin's metrics. Each label has a small, fixed set of values. Pod authors cannot set these values.
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

// These constants are the values of the label result in the metric grants_total.
const (
	grantConfirmed   = "confirmed"
	grantRaised      = "raised"       // memlock was lower than the grant, and the plugin raised it in the stored spec
	grantLate        = "late"         // the verbs device appeared after the response; memlock and IPC_LOCK were added
	grantRefusedLate = "refused_late" // the verbs device appeared after the response; the policy refuses the container
	grantUnconfirmed = "unconfirmed"  // the container might lack part of its grant
	grantAnswered    = "answered"     // the plugin responded, but cannot confirm the grant
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
			"Container creations that the plugin refused, by reason. "+
				"The kubelet retries each creation until it succeeds.",
			"reason"),
		duration: histogram("request_duration_seconds",
			"Time that the plugin takes to decide what to grant a container."),
		unknown: counter("unknown_resources_total",
			"Containers that got a reduced grant or no grant because the kubelet did not report their resources.",
		).WithLabelValues(),
		leftAlone: counter("left_alone_total",
			"Containers that got no grant because the kubelet did not respond to a query for their resources.",
		).WithLabelValues(),
		leftOut: counter("hcas_left_out_total",
			"HCAs that the plugin did not grant to a container that requested all HCAs, because the HCAs were unusable "+
				"or had no ACTIVE port.",
		).WithLabelValues(),
		authored: counter("authors_devices_total",
			"Containers that the plugin did not adjust, because the pod's author might have chosen the verbs device "+
				"with another plugin's annotation.").WithLabelValues(),
		grants: counter("grants_total",
			"Grants, by result: confirmed; raised (memlock was lower than the grant, and the plugin raised it); "+
				"late (the verbs device appeared after the plugin's response); "+
				"refused_late (late, and the policy would have refused the container, but it already existed); "+
				"unconfirmed (the container might lack part of its grant); "+
				"answered (the plugin responded, but cannot confirm the grant).", "result"),
		confirmDuration: histogram("confirm_duration_seconds",
			"Time that confirming a grant adds to the creation of a container."),
		configValid: gauge("config_valid",
			"1 if the configuration that the plugin read last is in force; 0 if that configuration is invalid."),
		configLoaded: gauge("config_loaded_timestamp_seconds", "Time when the configuration in force was loaded."),
	}
	m.configValid.Set(1)
	// Initialize the counters to 0, so that the first failure is an increase.
	for _, result := range []string{grantConfirmed, grantRaised, grantLate, grantRefusedLate, grantUnconfirmed,
		grantAnswered} {
		m.grants.WithLabelValues(result)
	}
	return m
}

// Collectors returns all of the plugin's metrics, for a registry. Values from other packages are read at collection
// time.
func (p *Plugin) Collectors() []prometheus.Collector {
	m := p.metrics
	all := []prometheus.Collector{
		m.requests, m.refusals, m.duration, m.unknown, m.leftAlone, m.leftOut, m.authored, m.grants, m.confirmDuration,
		m.configValid, m.configLoaded,
		p.Inventory,
		Flag("connected", "1 while the plugin is registered with the runtime.", nil, p.Registered),
		Flag("waiting", "1 while this process is waiting to take over the connection of a registered process.",
			nil, p.registration.Behind),
		Flag("registration_paused",
			"1 while the plugin waits several minutes before it tries to register again, "+
				"because the runtime closed the connection during two registrations in a row.",
			nil, p.registration.Paused),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "connected_unregistered_seconds",
			Help: "Time for which the plugin has been connected to the runtime, but not registered. " +
				"During this time, the runtime creates no containers.",
		}, func() float64 { return p.registration.Unregistered().Seconds() }),
		registeredAt{p.registration},
		registeredBelow{p},
	}
	return all
}

// registeredAt is the time of the last registration. The metric is absent before the first registration, so that each
// change of the metric means a registration, even after a crash.
type registeredAt struct{ *registration.Registration }

var registeredAtDesc = prometheus.NewDesc(namespace+"_registered_timestamp_seconds",
	"Time of the plugin's last registration. A process that takes over a connection keeps the registration time of "+
		"the previous process.",
	nil, nil)

// Describe implements prometheus.Collector.
func (registeredAt) Describe(to chan<- *prometheus.Desc) { to <- registeredAtDesc }

// Collect implements prometheus.Collector.
func (r registeredAt) Collect(to chan<- prometheus.Metric) {
	if when := r.When(); !when.IsZero() {
		to <- prometheus.MustNewConstMetric(registeredAtDesc, prometheus.GaugeValue, float64(when.UnixNano())/1e9)
	}
}

// registeredBelow is the number of containers that were below policy at the last registration. The metric is absent
// until the number is known.
type registeredBelow struct{ *Plugin }

var registeredBelowDesc = prometheus.NewDesc(namespace+"_registered_below_policy",
	"Running containers with a verbs device and a lower memlock than the policy grants, counted when the plugin last "+
		"registered. The value changes only when the plugin registers. A process that takes over a connection also takes "+
		"over this value.",
	nil, nil)

// Describe implements prometheus.Collector.
func (registeredBelow) Describe(to chan<- *prometheus.Desc) { to <- registeredBelowDesc }

// Collect implements prometheus.Collector.
func (r registeredBelow) Collect(to chan<- prometheus.Metric) {
	if count := r.below.Load(); count != nil {
		to <- prometheus.MustNewConstMetric(registeredBelowDesc, prometheus.GaugeValue, float64(*count))
	}
}

// Flag returns a metric that is 1 while holds returns true, and 0 otherwise. The metric's labels are constant.
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

// loaded records whether the configuration that the plugin read last is in force.
func (m *metrics) loaded(valid bool) {
	m.configValid.Set(0)
	if valid {
		m.configValid.Set(1)
		m.configLoaded.SetToCurrentTime()
	}
}

// count updates the metrics for a decision.
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
