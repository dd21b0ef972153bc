// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// causeUnadjusted means that the container would start without its grant.
const causeUnadjusted policy.Cause = "unadjusted"

// ValidateContainerAdjustment checks a container after all plugins have adjusted the container. The validator makes the
// same decision as the plugin, but for the adjusted container. If the container still lacks part of its grant, the
// validator refuses the container. The check ignores CAP_IPC_LOCK, since the container gets this capability later.
func (p *Plugin) ValidateContainerAdjustment(ctx context.Context,
	request *api.ValidateContainerAdjustmentRequest) error {
	start := time.Now()
	pod := request.GetPod()
	before := ContainerOf(pod, request.GetContainer())
	c := adjusted(before, request.GetAdjust())
	c.Injected = p.policy().Injects(c) && !policy.HoldsVerbs(before, p.facts)
	decision := p.decide(ctx, pod, c)
	if decision.Grant != nil {
		decision.Refusal = refuseUnadjusted(c, decision)
		decision.Grant = nil // a validator grants nothing
	}
	p.metrics.count(decision, start)
	if decision.Refusal == nil {
		return nil
	}
	return p.refuse(c, decision)
}

// refuseUnadjusted returns a refusal if a container lacks part of its grant.
func refuseUnadjusted(c policy.Container, d policy.Decision) *policy.Refusal {
	lacks := d.Grant.Lacks(hasOf(&c))
	var words []string
	if lacks.Memlock != 0 {
		words = append(words, "memlock "+lacks.Memlock.String())
	}
	if len(lacks.Devices) > 0 {
		words = append(words, "devices "+lacks.DeviceNames())
	}
	if len(words) == 0 {
		return nil
	}
	return &policy.Refusal{Cause: causeUnadjusted,
		Message: fmt.Sprintf("the RDMA container (%s: %s) would start without %s, which rule %q grants: check "+
			"that nri-rdma is registered on this node and uses the same configuration as the validator",
			d.Signal, d.Evidence, strings.Join(words, " and "), d.Rule)}
}

// adjusted returns a container with an adjustment applied. adjusted applies only the properties that decisions depend
// on and that plugins adjust.
func adjusted(c policy.Container, adjustment *api.ContainerAdjustment) policy.Container {
	if limit, set := memlockOf(adjustment.GetRlimits()); set {
		c.Memlock = limit
	}
	c.Devices = slices.Clone(c.Devices)
	for _, d := range adjustment.GetLinux().GetDevices() {
		path, removed := d.IsMarkedForRemoval()
		c.Devices = slices.DeleteFunc(c.Devices, func(had policy.Device) bool { return had.Path == path })
		if !removed {
			c.Devices = append(c.Devices, heldDevice(d))
		}
	}
	if limit := adjustment.GetLinux().GetResources().GetMemory().GetLimit(); limit != nil {
		c.MemoryLimit = limit.GetValue()
	}
	return c
}
