// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec"
)

// mostContainers bounds the series of a node. A kubelet runs 110 pods by default.
const mostContainers = 500

// registerUse registers how RDMA containers that hold an HCA, or have opened one, use it. What is unknown has no series.
func registerUse(registry *prometheus.Registry, containers []node.Container) error {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rdma_spec_container_" + name, Help: help},
			[]string{"namespace", "pod", "container"})
	}
	registered := gauge("registered_bytes", "Memory that an RDMA container has registered with HCAs, that of GPUs included.")
	pinned := gauge("pinned_bytes", "Memory that the processes of an RDMA container have pinned.")
	limit := gauge("memlock_limit_bytes", "The lowest memlock of an RDMA container's processes.")
	written := 0
	for _, c := range containers {
		if !c.RDMA || len(c.HCAs) == 0 && !c.Use.Seen() || written == mostContainers {
			continue
		}
		written++
		set := func(vec *prometheus.GaugeVec, value float64) {
			vec.WithLabelValues(c.Namespace, c.Pod, c.Container).Set(value)
		}
		if c.Use.Objects != nil {
			set(registered, float64(c.Use.RegisteredBytes))
		}
		if c.Use.PinnedBytes != nil {
			set(pinned, float64(*c.Use.PinnedBytes))
		}
		if c.Memlock != nil && c.Memlock.Soft == spec.Unlimited {
			set(limit, math.Inf(1))
		} else if c.Memlock != nil {
			set(limit, float64(c.Memlock.Soft))
		}
	}
	return errors.Join(registry.Register(registered), registry.Register(pinned), registry.Register(limit))
}
